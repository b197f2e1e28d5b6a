// path.h - how much should be on its way to one peer: as much as the path holds, learned from how it moves.
//
//     Path path;
//     if (path.Admits(task.bytes)) flight = path.Start(now, task.bytes, others_wait);
//     path.Sent(now, flight);                   // its bytes have left
//
// After BBR: two numbers describe a path, the rate at which it delivers (the largest of the last rounds) and the delay
// of a task that queues behind nothing (the smallest of the last seconds). Their product is what must be on its way to
// keep the path busy; more only waits in queues where nothing can overtake it. The credit is twice that, so that a path
// that has become faster shows it, and one task at least.
//
//     START   nothing is known: a large credit, until the rate grows no more
//     STEADY  twice rate x delay, and no less than that
//     PROBE   the delay was not seen for long: one task at a time, until one has been measured that was alone
//
// What `sent` means is the transport's business. Where it says that the other side has the bytes, the credit is the
// bandwidth-delay product of the network; where it says that the kernel has them (TCP), the kernel holds that product,
// the delay is next to nothing, and the credit comes down to a task (of small ones kLeastCredit) at a time.
//
// Small tasks say little (they may travel in the record of another, or not wait at all): only those of at least a
// quarter of the largest are measured.
// "Largest" is that of late: tensors are cut again (BYTEPS_PARTITION_BYTES), and where tasks have become smaller, so
// must what is on its way.
//
// Threads: none; a pure function of the calls. Units: bytes and nanoseconds.
#ifndef BYTEPS_SCHEDULER_PLUGINS_CREDIT_PATH_H_
#define BYTEPS_SCHEDULER_PLUGINS_CREDIT_PATH_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace byteps::credit {

class Path {
 public:
  enum class State { kStart, kSteady, kProbe };

  static constexpr uint64_t kInitialCredit = 1 << 20;
  static constexpr uint64_t kLeastCredit = 64 << 10;  // no larger than a part that is worth a message of its own
  static constexpr int64_t kDelayWindow = 10'000'000'000;
  static constexpr uint64_t kRateWindow = 10;  // rounds

  // One task on its way.
  struct Flight {
    uint64_t bytes = 0;
    int64_t started = 0;
    int64_t delivered_at = 0;  // the last delivery before the start
    uint64_t delivered = 0;    // bytes until then
    bool alone = false;        // nothing else was on its way
    bool limited = false;      // nothing else waited: what follows may be slower than the path
  };

  // May so many bytes more be on their way? One task always may.
  bool Admits(uint64_t bytes) const { return in_flight_ == 0 || bytes <= credit() - std::min(credit(), in_flight_); }

  Flight Start(int64_t now, uint64_t bytes, bool others_wait);
  void Sent(int64_t now, const Flight& flight);
  // It ended, and it is not known when its bytes left.
  void Lost(const Flight& flight) { in_flight_ -= flight.bytes; }

  uint64_t credit() const { return credit_; }
  uint64_t in_flight() const { return in_flight_; }
  State state() const { return state_; }
  // Bytes per second; 0: not known.
  double rate() const { return rates_.empty() ? 0 : rates_.front().rate; }
  // -1: not known.
  int64_t delay() const { return delay_; }

 private:
  struct Sample {
    uint64_t round;
    double rate;
  };

  void MeasureRate(int64_t now, const Flight& flight);
  void MeasureDelay(int64_t now, const Flight& flight);
  void Adjust(int64_t now);

  State state_ = State::kStart;
  uint64_t credit_ = kInitialCredit;
  uint64_t in_flight_ = 0;
  uint64_t largest_ = 0;  // task of late
  uint64_t group_largest_ = 0;
  uint64_t group_bytes_ = 0;

  uint64_t delivered_ = 0;
  int64_t delivered_at_ = 0;
  uint64_t round_ = 0;
  uint64_t round_ends_ = 0;    // with the first task that was started when so much was delivered
  std::vector<Sample> rates_;  // falling, one of a round at most; the first is the largest of the window
  double full_rate_ = 0;       // START: the largest so far
  uint32_t full_rounds_ = 0;   // and for how many rounds it has grown no more
  int64_t delay_ = -1;
  int64_t delay_seen_ = 0;
};

const char* PathStateName(Path::State state);

}  // namespace byteps::credit

#endif  // BYTEPS_SCHEDULER_PLUGINS_CREDIT_PATH_H_
