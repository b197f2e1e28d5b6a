// flight_place.h - the one place in flight of a name, and those that wait for it.
//
//     if (!place.Enter()) ...       // any thread: an operation of this name is in flight, or one waits for its turn
//     place.Leave();                // when it has ended
//
//     place.Await();                // any thread: what gives a round up comes behind the operation that is in flight
//     if (place.TakeTurn()) ...     // the thread that drives, until it is true: from here on as Enter
//
// Threads: any, where nothing else is said.
#ifndef BYTEPS_CORE_WORKER_TENSOR_FLIGHT_PLACE_H_
#define BYTEPS_CORE_WORKER_TENSOR_FLIGHT_PLACE_H_

#include <atomic>
#include <cstdint>

namespace byteps {

class FlightPlace {
 public:
  // Takes it; false if it is taken, or promised to one that waits.
  bool Enter() {
    uint32_t idle = 0;
    return state_.compare_exchange_strong(idle, kTaken, std::memory_order_acq_rel);
  }
  void Leave() { state_.fetch_sub(kTaken, std::memory_order_release); }

  // One more waits: from here on Enter fails, until it has taken its turn and left.
  void Await() { state_.fetch_add(kWaiting, std::memory_order_acq_rel); }
  // It waits no more.
  void Forgo() { state_.fetch_sub(kWaiting, std::memory_order_acq_rel); }
  // Takes the place for one of those that wait; false if it is taken.
  bool TakeTurn() {
    uint32_t seen = state_.load(std::memory_order_acquire);
    while ((seen & kTaken) == 0) {
      if (state_.compare_exchange_weak(seen, seen - kWaiting + kTaken, std::memory_order_acq_rel)) return true;
    }
    return false;
  }
  // Would TakeTurn take it?
  bool free() const { return (state_.load(std::memory_order_acquire) & kTaken) == 0; }
  // Is it neither taken nor waited for?
  bool idle() const { return state_.load(std::memory_order_acquire) == 0; }

 private:
  static constexpr uint32_t kTaken = 1, kWaiting = 2;

  std::atomic<uint32_t> state_{0};
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_FLIGHT_PLACE_H_
