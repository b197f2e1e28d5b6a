// control_codec.h - the frames of the control plane.
//
//     socket << *EncodeFrame(envelope);
//
//     FrameReader reader(kMaxHelloBytes);          // until the other side has proven who it is
//     reader.Append(bytes, size);
//     control::Envelope envelope;
//     while (absl::StatusOr<bool> got = reader.Next(&envelope); got.ok() && *got) ...
//
// A frame is: magic "BPSC" | version (u16) | 0 (u16) | size (u32) | an Envelope of that size; numbers little-endian.
// What is no such frame ends the connection with an error that says what came instead: a role of another version,
// another program, or damage. A reader holds no more than has arrived, whatever size a frame claims to have.
//
// Threads: a reader belongs to one thread at a time.
#ifndef BYTEPS_CORE_CONTROL_CONTROL_CODEC_H_
#define BYTEPS_CORE_CONTROL_CONTROL_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/control/control.pb.h"

namespace byteps {

// Members of one job must agree on it. In every frame, in Challenge and in Hello.
inline constexpr uint16_t kControlVersion = 1;

inline constexpr size_t kFrameHeaderBytes = 12;
// The largest Envelope of a process that has proven what it is, and of one that has not.
inline constexpr size_t kMaxFrameBytes = size_t{64} << 20;
inline constexpr size_t kMaxHelloBytes = size_t{64} << 10;

// The frame of `envelope`; RESOURCE_EXHAUSTED if it is larger than a frame may be.
absl::StatusOr<std::string> EncodeFrame(const control::Envelope& envelope);

// "hello", ...: which message is in there; for logs and errors.
const char* EnvelopeName(const control::Envelope& envelope);

class FrameReader {
 public:
  explicit FrameReader(size_t max_frame) : max_frame_(max_frame) {}

  void set_max_frame(size_t max_frame) { max_frame_ = max_frame; }

  void Append(const char* bytes, size_t size);

  // True: *envelope is the next frame. False: it has not arrived whole. An error is final.
  absl::StatusOr<bool> Next(control::Envelope* envelope);

  // Bytes that have arrived and were not taken yet.
  size_t buffered() const { return buffer_.size() - begin_; }

 private:
  absl::Status CheckHeader(const uint8_t* header) const;

  size_t max_frame_;
  std::string buffer_;
  size_t begin_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_CONTROL_CODEC_H_
