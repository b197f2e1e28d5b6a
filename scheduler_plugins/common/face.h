// face.h - the verbs of abi/scheduler.h on top of a C++ class.
//
//     constexpr bps_scheduler_table kTable = Face<Scheduler>::Table(create);
//
// Scheduler has Enqueue(now, task), Next(now, budgets, count, id), Sent(now, id), Complete(now, id, outcome),
// Withdraw(id), Stats(stats) and WakeAt(); Peers(peers, count), if it wants to know who there is; Rate() and
// Agreed(now, rate), if it cares for what the links of all workers carry.
//
// Threads: as abi/scheduler.h: one at a time for each instance. Errors: Create's alone; an exception of another verb
// ends the process, since the table's functions may not throw.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_FACE_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_FACE_H_

#include <cstddef>
#include <cstdint>

#include "abi/byteps.h"
#include "abi/scheduler.h"

namespace byteps::scheduling {

template <typename Scheduler>
class Face {
 public:
  using CreateFunction = decltype(bps_scheduler_table::create);

  static constexpr bps_scheduler_table Table(CreateFunction create) {
    return {
        .struct_size = sizeof(bps_scheduler_table),
        .create = create,
        .destroy = [](bps_scheduler* scheduler) { delete Of(scheduler); },
        .enqueue = [](bps_scheduler* scheduler, int64_t now,
                      const bps_task* task) noexcept { Of(scheduler)->Enqueue(now, *task); },
        .next = [](bps_scheduler* scheduler, int64_t now, const bps_budget* budgets, size_t count,
                   uint64_t* id) noexcept { return Of(scheduler)->Next(now, budgets, count, id) ? 1 : 0; },
        .sent = [](bps_scheduler* scheduler, int64_t now, uint64_t id) noexcept { Of(scheduler)->Sent(now, id); },
        .complete = [](bps_scheduler* scheduler, int64_t now, uint64_t id,
                       int32_t outcome) noexcept { Of(scheduler)->Complete(now, id, outcome); },
        .withdraw = [](bps_scheduler* scheduler, uint64_t id) noexcept { Of(scheduler)->Withdraw(id); },
        .peers = Peers(),
        .stats = [](bps_scheduler* scheduler, bps_scheduler_stats* stats) { Of(scheduler)->Stats(stats); },
        .wake_at = [](bps_scheduler* scheduler, int64_t) { return Of(scheduler)->WakeAt(); },
        .rate = Rate(),
        .agreed = Agreed(),
    };
  }

 private:
  using PeersFunction = decltype(bps_scheduler_table::peers);

  static Scheduler* Of(bps_scheduler* scheduler) { return reinterpret_cast<Scheduler*>(scheduler); }

  // Optional: for one that has no Peers, queues appear and go with their tasks.
  static constexpr PeersFunction Peers() {
    if constexpr (requires(Scheduler & scheduler) { scheduler.Peers(nullptr, 0); }) {
      return [](bps_scheduler* scheduler, const uint32_t* peers, size_t count) noexcept {
        Of(scheduler)->Peers(peers, count);
      };
    } else {
      return nullptr;
    }
  }

  using RateFunction = decltype(bps_scheduler_table::rate);
  using AgreedFunction = decltype(bps_scheduler_table::agreed);

  static constexpr RateFunction Rate() {
    if constexpr (requires(Scheduler & scheduler) { scheduler.Rate(); }) {
      return [](bps_scheduler* scheduler) noexcept -> uint64_t { return Of(scheduler)->Rate(); };
    } else {
      return nullptr;
    }
  }
  static constexpr AgreedFunction Agreed() {
    if constexpr (requires(Scheduler & scheduler) { scheduler.Agreed(0, 0); }) {
      return [](bps_scheduler* scheduler, int64_t now, uint64_t rate) noexcept { Of(scheduler)->Agreed(now, rate); };
    } else {
      return nullptr;
    }
  }
};

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_FACE_H_
