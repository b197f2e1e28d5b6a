#include "core/control/control_codec.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace byteps {
namespace {

constexpr char kMagic[4] = {'B', 'P', 'S', 'C'};

uint32_t Read16(const uint8_t* bytes) { return bytes[0] | static_cast<uint32_t>(bytes[1]) << 8; }
uint32_t Read32(const uint8_t* bytes) { return Read16(bytes) | Read16(bytes + 2) << 16; }

void Write16(uint32_t value, char* bytes) {
  bytes[0] = static_cast<char>(value);
  bytes[1] = static_cast<char>(value >> 8);
}

std::string Hex(const uint8_t* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    char digits[4];
    std::snprintf(digits, sizeof(digits), "%s%02x", i == 0 ? "" : " ", static_cast<unsigned>(bytes[i]));
    text += digits;
  }
  return text;
}

absl::Status OtherVersion(uint32_t version) {
  return absl::FailedPreconditionError("a role of another version: it speaks control protocol " +
                                       std::to_string(version) + ", this one speaks " +
                                       std::to_string(kControlVersion) + "; install the same BytePS everywhere");
}

// Is it one of those that are the same in all versions? Then it says of which version its sender is.
bool SaysVersion(uint32_t version, control::Envelope* envelope) {
  switch (envelope->message_case()) {
    case control::Envelope::kChallenge:
      envelope->mutable_challenge()->set_control_version(version);
      return true;
    case control::Envelope::kHello:
      envelope->mutable_hello()->set_control_version(version);
      return true;
    case control::Envelope::kFailure:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<std::string> EncodeFrame(const control::Envelope& envelope) {
  const size_t size = envelope.ByteSizeLong();
  if (size > kMaxFrameBytes) {
    return absl::ResourceExhaustedError(std::string("a control message (") + EnvelopeName(envelope) + ") of " +
                                        std::to_string(size) + " bytes; at most " + std::to_string(kMaxFrameBytes) +
                                        " are possible");
  }
  std::string frame(kFrameHeaderBytes + size, '\0');
  std::memcpy(frame.data(), kMagic, sizeof(kMagic));
  Write16(kControlVersion, &frame[4]);
  Write16(static_cast<uint32_t>(size & 0xffff), &frame[8]);
  Write16(static_cast<uint32_t>(size >> 16), &frame[10]);
  if (!envelope.SerializeToArray(frame.data() + kFrameHeaderBytes, static_cast<int>(size))) {
    return absl::InternalError(std::string("a control message (") + EnvelopeName(envelope) + ") cannot be encoded");
  }
  return frame;
}

const char* EnvelopeName(const control::Envelope& envelope) {
  switch (envelope.message_case()) {
    case control::Envelope::kChallenge:
      return "challenge";
    case control::Envelope::kHello:
      return "hello";
    case control::Envelope::kWelcome:
      return "welcome";
    case control::Envelope::kWaiting:
      return "waiting";
    case control::Envelope::kEpoch:
      return "epoch";
    case control::Envelope::kDeclareRequest:
      return "declare request";
    case control::Envelope::kDeclareReply:
      return "declare reply";
    case control::Envelope::kPeerAddress:
      return "peer address";
    case control::Envelope::kBarrierRequest:
      return "barrier request";
    case control::Envelope::kBarrierReply:
      return "barrier reply";
    case control::Envelope::kHeartbeat:
      return "heartbeat";
    case control::Envelope::kGoodbye:
      return "goodbye";
    case control::Envelope::kGoodbyeReply:
      return "goodbye reply";
    case control::Envelope::kFailure:
      return "failure";
    case control::Envelope::kSessionEnded:
      return "session ended";
    case control::Envelope::kJobEnded:
      return "job ended";
    case control::Envelope::MESSAGE_NOT_SET:
      break;
  }
  return "nothing known";
}

void FrameReader::Append(const char* bytes, size_t size) {
  // What was taken goes before what comes is kept: the buffer never holds more than two frames' worth.
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
    // One large frame shall not hold its memory for the life of the connection.
    if (buffer_.capacity() > 2 * kMaxHelloBytes) buffer_.shrink_to_fit();
  } else if (begin_ > buffer_.size() / 2) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(bytes, size);
}

absl::Status FrameReader::CheckHeader(const uint8_t* header) const {
  if (std::memcmp(header, kMagic, sizeof(kMagic)) != 0) {
    return absl::FailedPreconditionError("what came is no BytePS control message (it starts with " + Hex(header, 8) +
                                         "): another program, or an original BytePS");
  }
  if (Read16(header + 4) == kControlVersion && Read16(header + 6) != 0)
    return absl::InvalidArgumentError("a control message with reserved bits set");
  const uint32_t size = Read32(header + 8);
  if (size > max_frame_) {
    return absl::InvalidArgumentError("a control message of " + std::to_string(size) + " bytes; at most " +
                                      std::to_string(max_frame_) + " are accepted here");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> FrameReader::Next(control::Envelope* envelope) {
  const uint8_t* header = reinterpret_cast<const uint8_t*>(buffer_.data()) + begin_;
  if (buffered() < kFrameHeaderBytes) {
    // Another program is recognised by its first bytes: it may never send twelve.
    if (std::memcmp(header, kMagic, std::min(buffered(), sizeof(kMagic))) == 0) return false;
    return absl::FailedPreconditionError("what came is no BytePS control message (it starts with " +
                                         Hex(header, std::min<size_t>(buffered(), 8)) +
                                         "): another program, or an original BytePS");
  }
  if (absl::Status status = CheckHeader(header); !status.ok()) return status;
  const size_t size = Read32(header + 8);
  if (buffered() < kFrameHeaderBytes + size) return false;
  envelope->Clear();
  const bool parsed = envelope->ParseFromArray(header + kFrameHeaderBytes, static_cast<int>(size));
  if (const uint32_t version = Read16(header + 4); version != kControlVersion) {
    if (!parsed || !SaysVersion(version, envelope)) return OtherVersion(version);
  } else if (!parsed) {
    return absl::InvalidArgumentError("a control message of " + std::to_string(size) + " bytes that cannot be decoded");
  }
  begin_ += kFrameHeaderBytes + size;
  return true;
}

}  // namespace byteps
