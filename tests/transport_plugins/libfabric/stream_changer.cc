#include "tests/transport_plugins/libfabric/stream_changer.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

namespace byteps::testing {

void StreamChanger::Set(const Change& change, uint16_t port) {
  const std::lock_guard<std::mutex> lock(mutex_);
  change_ = change;
  port_ = port;
}

bool StreamChanger::Concerns(int fd) const {
  if (change_.where == Where::kNowhere || (done_ && change_.leave_out == 0)) return false;
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0 || name.ss_family != AF_INET) return false;
  return ntohs(reinterpret_cast<const sockaddr_in&>(name).sin_port) != port_ || port_ == 0;
}

std::vector<uint8_t> StreamChanger::Offer(int fd, const std::vector<uint8_t>& bytes, size_t* first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Stream stream = streams_[fd];
  Counts counts = counts_;
  std::vector<uint8_t> changed = bytes;
  *first = bytes.size();
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Where kind = KindOf(&stream, bytes[i]);
    if (kind == change_.where && Place(stream, kind, &counts) == change_.at) {
      if (change_.leave_out == 0) {
        changed[i] ^= change_.flip;
      } else {
        *first = i;
      }
    }
    ++counts[static_cast<size_t>(kind)];
  }
  if (*first != bytes.size()) {
    const auto from = changed.begin() + static_cast<ptrdiff_t>(*first);
    changed.erase(from, from + static_cast<ptrdiff_t>(std::min(change_.leave_out, bytes.size() - *first)));
  }
  return changed;
}

void StreamChanger::Taken(int fd, const std::vector<uint8_t>& bytes, size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Stream& stream = streams_[fd];
  size_t left_out = 0;
  for (size_t i = 0; i < count; ++i) {
    const Stream before = stream;
    const Where kind = KindOf(&stream, bytes[i]);
    if (!done_ && kind == change_.where && Place(stream, kind, &counts_) == change_.at) {
      done_ = true;
      left_out = change_.leave_out;
      left_out_of_ = fd;
      receiver_ = before;
    }
    ++counts_[static_cast<size_t>(kind)];
    if (fd != left_out_of_) continue;
    if (left_out != 0) {
      --left_out;
      continue;
    }
    if (Step(&receiver_, bytes[i]) != Where::kHead || receiver_.in_head != 3) continue;
    // A tagged message, or one that wants to be acknowledged.
    const bool falls = receiver_.head[1] == 1 || ((receiver_.head[2] | receiver_.head[3]) & 4) != 0;
    if (falls && misled_ != nullptr) *misled_ = true;
  }
}

void StreamChanger::Forget(int fd) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(fd);
  if (fd == left_out_of_) left_out_of_ = -1;
}

size_t StreamChanger::Place(const Stream& stream, Where kind, Counts* counts) {
  size_t& count = (*counts)[static_cast<size_t>(kind)];
  if (kind == Where::kHead) count = (stream.heads - 1) * Change::kPlaces + stream.in_head;
  return count;
}

Where StreamChanger::KindOf(Stream* stream, uint8_t byte) const {
  const Where kind = Step(stream, byte);
  return kind == Where::kBody && stream->large && change_.where == Where::kPayload ? Where::kPayload : kind;
}

// Of which kind the next byte of a stream is.
Where StreamChanger::Step(Stream* stream, uint8_t byte) {
  if (stream->sent++ == 0) stream->head.clear();
  if (stream->sent <= kAnswer) {
    stream->head.push_back(byte);
    // A request has type 0 and carries what it was given; an answer has type 1 and nothing.
    if (stream->sent == 4) stream->greeting = kAnswer + (size_t{stream->head[2]} << 8 | stream->head[3]);
    if (stream->sent == stream->greeting) stream->head.clear(), stream->head_left = kHead;
    return Where::kGreeting;
  }
  if (stream->sent <= stream->greeting) {
    if (stream->sent == stream->greeting) stream->head.clear(), stream->head_left = kHead;
    return Where::kGreeting;
  }
  if (stream->head_left != 0) {
    stream->head.push_back(byte);
    if (stream->head.size() == 1) ++stream->heads;
    stream->in_head = stream->head.size() - 1;
    if (--stream->head_left == 0) {
      if (stream->head.size() == kHead && stream->head[6] > kHead) {
        stream->head_left = stream->head[6] - kHead;  // immediate, keys
      } else {
        uint64_t size = 0;
        std::memcpy(&size, stream->head.data() + 8, sizeof size);
        stream->body_left = size - stream->head[6];
        stream->large = stream->body_left > kLarge;
        stream->head.clear();
        if (stream->body_left == 0) stream->head_left = kHead;
      }
    }
    return Where::kHead;
  }
  if (--stream->body_left == 0) stream->head_left = kHead;
  return Where::kBody;
}

StreamChanger& TheStreamChanger() {
  static StreamChanger* const changer = new StreamChanger;
  return *changer;
}

namespace {

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace byteps::testing

extern "C" {

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto real = byteps::testing::Real<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  byteps::testing::StreamChanger& changer = byteps::testing::TheStreamChanger();
  // What one thread sends is counted before another one sends.
  static std::mutex sending;
  const std::lock_guard<std::mutex> lock(sending);
  if (!changer.Concerns(fd)) return real(fd, message, flags);
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < message->msg_iovlen; ++i) {
    const auto* base = static_cast<const uint8_t*>(message->msg_iov[i].iov_base);
    bytes.insert(bytes.end(), base, base + message->msg_iov[i].iov_len);
  }
  size_t first = 0;
  std::vector<uint8_t> changed = changer.Offer(fd, bytes, &first);
  const size_t left_out = bytes.size() - changed.size();
  ssize_t taken = 0;
  if (!changed.empty()) {
    iovec part{changed.data(), changed.size()};
    msghdr header = *message;
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    taken = real(fd, &header, flags);
    if (taken < 0) return taken;
  }
  // Their sender counts what was left out, too.
  if (static_cast<size_t>(taken) == changed.size() || static_cast<size_t>(taken) > first) {
    taken += static_cast<ssize_t>(left_out);
  }
  changer.Taken(fd, bytes, static_cast<size_t>(taken));
  return taken;
}

__attribute__((visibility("default"))) ssize_t send(int fd, const void* data, size_t size, int flags) {
  iovec part{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return sendmsg(fd, &message, flags);
}

__attribute__((visibility("default"))) int close(int fd) {
  static const auto real = byteps::testing::Real<int (*)(int)>("close");
  byteps::testing::TheStreamChanger().Forget(fd);
  return real(fd);
}

}  // extern "C"
