// stream_changer.h - alters one place of what this process sends over TCP by libfabric: flips bits, or leaves bytes
// out.
//
//     TheStreamChanger().Set({Where::kBody, 1000, 0xff});            // byte 1000 of all that is ours, xor 0xff
//     TheStreamChanger().Set({Where::kBody, 1000, 0, 3});            // the three bytes from there on are left out
//     if (TheStreamChanger().done()) ...
//
// A program that links this has its own send(2) and sendmsg(2), which come before libc's for libfabric, too; they know
// how libfabric cuts a stream, so that a number says which byte it is. As a shared object to be preloaded
// (altered_streams.cc) it does the same to any process.
//
// Threads: any.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_STREAM_CHANGER_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_STREAM_CHANGER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace byteps::testing {

// Of a connection request or its answer; of libfabric's own header in front of each message and write; of what is
// behind it; of writes above kLarge bytes alone, which are parts of tensors.
enum class Where { kNowhere, kGreeting, kHead, kBody, kPayload };

// One change: at byte `at` of all bytes of that kind which this process sends, whatever the connection. Of kHead,
// kPlaces for each header: byte `at` % kPlaces of header `at` / kPlaces.
struct Change {
  static constexpr size_t kPlaces = 256;

  Where where = Where::kNowhere;
  size_t at = 0;
  uint8_t flip = 0xff;
  size_t leave_out = 0;  // not 0: so many bytes are left out, and none is flipped
};

class StreamChanger {
 public:
  static constexpr uint64_t kLarge = 32 * 1024;
  // Lengths that libfabric 1.17 and 2.x have in common: of a request with our parameters, of an answer, of a header.
  static constexpr size_t kRequest = 64, kAnswer = 32, kHead = 16;

  // Connections to `port` are not looked at: those of the control plane.
  void Set(const Change& change, uint16_t port = 0);
  // Has it been made?
  bool done() const { return done_; }
  // Where it is told when what is left of the stream has the receiver take for a header something by which libfabric
  // 1.17 falls (transport_plugins/libfabric/README.md), before a byte of it is ours to check.
  void TellMisled(std::atomic<bool>* misled) { misled_ = misled; }
  bool Concerns(int fd) const;

  // What becomes of bytes that are to be sent: they, changed. `first` is the number of the first byte that is left out,
  // or their number.
  std::vector<uint8_t> Offer(int fd, const std::vector<uint8_t>& bytes, size_t* first);
  // The kernel has taken so many of them, those left out included.
  void Taken(int fd, const std::vector<uint8_t>& bytes, size_t count);
  void Forget(int fd);

 private:
  // Where a connection's outgoing stream stands.
  struct Stream {
    size_t sent = 0;
    size_t greeting = 0;   // length of its first bytes
    size_t head_left = 0;  // of libfabric's header
    uint64_t body_left = 0;
    bool large = false;
    size_t heads = 0, in_head = 0;  // headers so far, and the byte of the last one
    std::vector<uint8_t> head;
  };

  using Counts = std::array<size_t, 5>;  // by Where

  Where KindOf(Stream* stream, uint8_t byte) const;
  static Where Step(Stream* stream, uint8_t byte);
  static size_t Place(const Stream& stream, Where kind, Counts* counts);

  std::mutex mutex_;
  Change change_;
  uint16_t port_ = 0;
  std::atomic<bool> done_ = false;
  std::atomic<bool>* misled_ = nullptr;
  int left_out_of_ = -1;  // whose receiver reads the wrong places since
  Stream receiver_;
  std::map<int, Stream> streams_;
  Counts counts_{};
};

StreamChanger& TheStreamChanger();

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_STREAM_CHANGER_H_
