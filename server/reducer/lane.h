// lane.h - one engine thread of a server: a Reducer, driven in real time.
//
//     auto lane = Lane::Start(std::move(transport), options, on_broken, log);
//     hello.add_lanes() <- lane->address()
//     lane->AddSession(epoch, own_member);     lane->EndSession(id);     // from any thread: done soon
//     lane->Stop();
//
// Lanes share nothing. The thread polls as long as there is work, then yields for a moment, then sleeps in poll(2) on
// the transport's descriptor, its mailbox and the next timer: an idle lane uses no CPU.
//
// Threads:   every function may be called on any thread. `on_broken` runs on the lane's.
// Ownership: `log`'s sink must outlive the lane; Stop (and the destructor) joins the thread.
#ifndef BYTEPS_SERVER_REDUCER_LANE_H_
#define BYTEPS_SERVER_REDUCER_LANE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/base/unique_fd.h"
#include "core/control/control.pb.h"
#include "core/plugin/transport.h"
#include "server/reducer/reducer.h"

namespace byteps {

struct LaneOptions {
  ReducerOptions reducer;
  Time spin = 50'000;  // how long an idle thread yields before it blocks
};

class Lane {
 public:
  using OnBroken = std::function<void(const BrokenSession&)>;

  static absl::StatusOr<std::unique_ptr<Lane>> Start(Transport transport, const LaneOptions& options,
                                                     OnBroken on_broken, const Logger& log);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // As Hello announces it.
  const control::Lane& address() const { return address_; }

  // A session that cannot be joined is told as broken.
  void AddSession(const control::Epoch& epoch, uint32_t own_member);
  void EndSession(uint64_t session);
  void Stop();
  // Its thread is never waited for: it is inside a plugin that does not return. The lane must stay where it is.
  void Detach();

  // As of the last time the lane was idle.
  ReducerStats stats() const;

 private:
  struct Message {
    enum class Kind { kAdd, kEnd, kStop } kind;
    control::Epoch epoch;
    uint32_t own_member = 0;
    uint64_t session = 0;
  };

  Lane(const LaneOptions& options, OnBroken on_broken, const Logger& log);
  void Put(Message message);
  void Run();
  // False: stop.
  bool ReadMail();
  void TellBroken();
  void Sleep(Time now);
  void Publish();

  const LaneOptions options_;
  const OnBroken on_broken_;
  Logger log_;
  control::Lane address_;
  UniqueFd wake_;
  std::unique_ptr<Reducer> reducer_;  // the thread's

  mutable std::mutex mutex_;
  std::vector<Message> messages_;  // under mutex_
  ReducerStats stats_;             // under mutex_
  std::atomic<bool> has_messages_ = false;
  std::thread thread_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_LANE_H_
