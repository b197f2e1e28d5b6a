// Bytes of the data plane that change on their way: whatever changes, in a connection of the tcp transport, no process falls
// and none waits for ever. The connection goes on, or it is lost to both sides in time.
//
// This program's own send(2) and sendmsg(2) take the place of libc's for libfabric, too, since a program's symbols come
// first. They know how libfabric cuts a stream, so that a seed says which byte: of a request, of what we send, or of
// libfabric's own header in front of it.

#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/libfabric/node.h"

namespace byteps::testing {
namespace {

constexpr size_t kRequest = 64, kAnswer = 32, kHead = 16;

enum class Where { kNowhere, kGreeting, kHead, kBody };

// One change: byte `at` of all bytes of that kind which this process sends, whatever the connection. Of kHead, kPlaces for each
// header: byte `at` % kPlaces of header `at` / kPlaces.
constexpr size_t kPlaces = 256;
struct Change {
  Where where = Where::kNowhere;
  size_t at = 0;
  uint8_t flip = 0xff;
};

// Where a connection's outgoing stream stands.
struct Stream {
  size_t sent = 0;
  size_t greeting = 0;   // length of its first bytes
  size_t head_left = 0;  // of libfabric's header
  uint64_t body_left = 0;
  size_t heads = 0, in_head = 0;  // headers so far, and the byte of the last one
  std::vector<uint8_t> head;
};

class Changer {
 public:
  void Set(const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change_ = change;
  }
  bool done() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  bool active() const { return change_.where != Where::kNowhere; }

  // Bytes that are offered to the kernel: a copy, changed. What it takes of them is told by Taken.
  void Offer(int fd, std::vector<uint8_t>* bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Stream stream = streams_[fd];
    std::map<Where, size_t> counts = counts_;
    for (uint8_t& byte : *bytes) {
      const uint8_t original = byte;
      const Where kind = Step(&stream, original);
      if (kind == change_.where && Place(stream, kind, &counts) == change_.at) byte ^= change_.flip;
      ++counts[kind];
    }
  }
  void Taken(int fd, const std::vector<uint8_t>& original, size_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      Stream& stream = streams_[fd];
      const Where kind = Step(&stream, original[i]);
      if (kind == change_.where && Place(stream, kind, &counts_) == change_.at) done_ = true;
      ++counts_[kind];
    }
  }
  void Forget(int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.erase(fd);
  }

 private:
  static size_t Place(const Stream& stream, Where kind, std::map<Where, size_t>* counts) {
    size_t& count = (*counts)[kind];
    if (kind == Where::kHead) count = (stream.heads - 1) * kPlaces + stream.in_head;
    return count;
  }

  // Of which kind the next byte of a stream is.
  static Where Step(Stream* stream, uint8_t byte) {
    if (stream->sent++ == 0) stream->head.clear();
    stream->head.push_back(byte);
    // A request has type 0 and carries what it was given; an answer has type 1 and nothing.
    if (stream->sent <= kAnswer) {
      if (stream->sent == 4) stream->greeting = kAnswer + (size_t{stream->head[2]} << 8 | stream->head[3]);
      if (stream->sent == std::max(stream->greeting, size_t{4})) stream->head.clear();
      if (stream->sent == stream->greeting) stream->head_left = kHead;
      return Where::kGreeting;
    }
    if (stream->sent <= stream->greeting) {
      if (stream->sent == stream->greeting) stream->head.clear(), stream->head_left = kHead;
      return Where::kGreeting;
    }
    if (stream->head_left != 0) {
      if (stream->head.size() == 1) ++stream->heads;
      stream->in_head = stream->head.size() - 1;
      if (--stream->head_left == 0) {
        if (stream->head.size() == kHead && stream->head[6] > kHead) {
          stream->head_left = stream->head[6] - kHead;  // immediate, keys
        } else {
          uint64_t size = 0;
          std::memcpy(&size, stream->head.data() + 8, sizeof size);
          stream->body_left = size - stream->head[6];
          stream->head.clear();
          if (stream->body_left == 0) stream->head_left = kHead;
        }
      }
      return Where::kHead;
    }
    stream->head.clear();
    if (--stream->body_left == 0) stream->head_left = kHead;
    return Where::kBody;
  }

  std::mutex mutex_;
  Change change_;
  bool done_ = false;
  std::map<int, Stream> streams_;
  std::map<Where, size_t> counts_;
};

Changer& TheChanger() {
  static Changer* const changer = new Changer;
  return *changer;
}

bool IsStream(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  return getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 && name.ss_family == AF_INET;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto real = Real<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  if (!TheChanger().active() || !IsStream(fd)) return real(fd, message, flags);
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < message->msg_iovlen; ++i) {
    const auto* base = static_cast<const uint8_t*>(message->msg_iov[i].iov_base);
    bytes.insert(bytes.end(), base, base + message->msg_iov[i].iov_len);
  }
  const std::vector<uint8_t> original = bytes;
  TheChanger().Offer(fd, &bytes);
  iovec part{bytes.data(), bytes.size()};
  msghdr changed = *message;
  changed.msg_iov = &part;
  changed.msg_iovlen = 1;
  const ssize_t taken = real(fd, &changed, flags);
  if (taken > 0) TheChanger().Taken(fd, original, static_cast<size_t>(taken));
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
  static const auto real = Real<int (*)(int)>("close");
  if (TheChanger().active()) TheChanger().Forget(fd);
  return real(fd);
}

}  // extern "C"

namespace {

constexpr bps_peer kLeft = 5, kRight = 6;
// Exit codes that nothing else has: libfabric 1.17 brings a handler of SIGSEGV that ends a process with 1.
enum Outcome { kOver = 40, kLost, kUntouched, kHanging };

// Two endpoints that greet, send and write to each other, with one byte changed. What became of it.
Outcome Talk(const Change& change) {
  TheChanger().Set(change);
  const NodeOptions options{.config = {{"BYTEPS_PEER_TIMEOUT", "1.5"}}};
  Node left(options), right(options);
  std::vector<char> source(40'000, 's'), landing(40'000);
  if (left.Connect(kRight, kLeft, right.address()) != BPS_OK ||
      right.Connect(kLeft, kRight, left.address()) != BPS_OK) {
    return kLost;
  }
  const std::string key = right.Key(right.Reg(landing.data(), landing.size()), kLeft);
  const auto lost = [&] { return left.down(kRight) || right.down(kLeft); };
  const auto both = [&] { return left.down(kRight) && right.down(kLeft); };
  for (int round = 0; round < 8 && !lost(); ++round) {
    if (left.Send(kRight, std::string(static_cast<size_t>(20 + round * 700), 'm')) != BPS_OK) break;
    if (right.Send(kLeft, "answer") != BPS_OK) break;
    if (left.Write(kRight, nullptr, source.data(), source.size(), key, 0, 7) != BPS_OK) break;
    const size_t want = static_cast<size_t>(round + 1);
    const auto there = [&] {
      return lost() || (right.messages().size() >= want && left.messages().size() >= want &&
                        right.Count(BPS_EVENT_IMMEDIATE) >= want);
    };
    // An immediate, or a message, that was taken for something else does not come, and its owner has deadlines of his own:
    // that is no wait of the transport.
    if (!Until(left, right, there, 1)) break;
  }
  if (lost() && !Until(left, right, both, 5)) return kHanging;
  // It goes, whatever is left of it.
  left.Disconnect(kRight);
  right.Disconnect(kLeft);
  if (!Until(
          left, right, [&] { return left.Count(BPS_EVENT_DISCONNECTED) + right.Count(BPS_EVENT_DISCONNECTED) == 2; },
          5)) {
    return kHanging;
  }
  return !TheChanger().done() ? kUntouched : lost() ? kLost : kOver;
}

// The same, each in a process of its own, several at a time; -1 - signal where it fell.
std::vector<int> TalkApart(const std::vector<Change>& changes) {
  constexpr size_t kAtOnce = 8;
  std::vector<int> outcomes;
  std::fflush(stdout);
  for (size_t first = 0; first < changes.size(); first += kAtOnce) {
    std::vector<pid_t> children;
    for (size_t i = first; i < std::min(first + kAtOnce, changes.size()); ++i) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      alarm(30);
      _exit(Talk(changes[i]));
    }
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      outcomes.push_back(WIFSIGNALED(status) ? -1 - WTERMSIG(status) : WEXITSTATUS(status));
    }
  }
  return outcomes;
}

const char* Name(int outcome) {
  switch (outcome) {
    case kOver:
      return "went on";
    case kLost:
      return "lost, both sides know";
    case kUntouched:
      return "not reached";
    case kHanging:
      return "hangs";
    case -1 - SIGALRM:
      return "hangs (killed)";
    default:
      return "FELL";
  }
}

void ExpectNoHarm(const std::vector<Change>& changes) {
  const std::vector<int> outcomes = TalkApart(changes);
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_TRUE(outcomes[i] == kOver || outcomes[i] == kLost)
        << "byte " << changes[i].at << ", xor " << int{changes[i].flip} << ": " << Name(outcomes[i]) << " "
        << outcomes[i];
  }
}

TEST(Flips, OfWhatWeSend) {
  std::vector<Change> changes;
  for (uint32_t seed = 0; seed < 32; ++seed) {
    std::mt19937 random(seed);
    // The first message is 28 bytes with our header, an announcement 16: small numbers are headers of ours.
    const size_t most = random() % 2 == 0 ? 200 : 60'000;
    const size_t at = random() % most;
    changes.push_back({Where::kBody, at, static_cast<uint8_t>(1u << random() % 8)});
  }
  ExpectNoHarm(changes);
}

TEST(Flips, OfEachByteOfRequestAndAnswer) {
  std::vector<Change> changes;
  for (size_t at = 0; at < kRequest + kAnswer; ++at) changes.push_back({Where::kGreeting, at, 0xff});
  ExpectNoHarm(changes);
}

// libfabric's own header, field by field: what becomes of it is libfabric's doing, before a byte of it is ours to check. Not
// run by itself: --gtest_also_run_disabled_tests prints the table of transport_plugins/libfabric/README.md.
TEST(FlipsOfLibfabric, DISABLED_Table) {
  constexpr const char* kFields[kHead] = {"version",  "op",       "flags", "flags", "op_data", "rma_iov_cnt",
                                          "hdr_size", "reserved", "size",  "size",  "size",    "size",
                                          "size",     "size",     "size",  "size"};
  // A message; the announcement of a write, and the write.
  for (const size_t header : {0u, 2u, 3u}) {
    std::vector<Change> changes;
    for (size_t at = 0; at < kHead; ++at) {
      for (const uint8_t flip : {0x01, 0x02, 0x04, 0x80, 0xff})
        changes.push_back({Where::kHead, kPlaces * header + at, flip});
    }
    const std::vector<int> outcomes = TalkApart(changes);
    for (size_t i = 0; i < changes.size(); ++i) {
      const size_t at = changes[i].at % kPlaces;
      std::printf("header %zu, %2zu %-12s xor %02x: %s\n", header, at, kFields[at], changes[i].flip, Name(outcomes[i]));
    }
  }
}

}  // namespace
}  // namespace byteps::testing
