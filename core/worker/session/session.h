// session.h - a membership in a job, from open to close: owns everything of a worker, and gives it time and
// descriptors.
//
//     absl::StatusOr<std::shared_ptr<Session>> session = Session::Open(args);
//     absl::StatusOr<Tensor*> tensor = (*session)->Declare(name, dtype, shape);
//     absl::Status status = (*session)->Submit(submission);       // the request in it tells the end
//     status = (*session)->Wait(*request, deadline, small);
//     status = (*session)->Shutdown(timeout);
//     (*session)->Close();
//
// The shell around two step functions: the engine (data plane) and the control client. It is a Machine
// (core/worker/session/driver.h): one I/O thread steps it, or a caller that waits for a small tensor.
//
// The subtle parts:
//
// Threads.   Public functions may be called on any thread. Everything that is not atomic belongs to the thread that
//            holds the drive lock. Callbacks of requests run without it.
// Submitting. A small tensor with nothing else in flight is pushed by the caller itself, if no thread drives just now;
//            else the submission goes through a queue without a lock, and the driver is woken if it sleeps. Callers
//            drive only once an operation has ended in this session: one that meets a plugin which never returns would
//            not return, either, and keep no deadline. A GPU's driver may do so at any time: where the session has
//            GPUs, no caller drives.
// Failure.   The first fatal error, from either plane, ends all operations, barriers and waits, and is the answer to
//            every later call.
// Lifetime.  Handles share the session. Close ends all that is running and gives descriptors and memory of peers back;
//            what is left goes with the last handle.
// fork().    In a forked child every public function fails, Close does nothing.
#ifndef BYTEPS_CORE_WORKER_SESSION_SESSION_H_
#define BYTEPS_CORE_WORKER_SESSION_SESSION_H_

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "abi/byteps.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/block_stock.h"
#include "core/base/first_error.h"
#include "core/base/fork_guard.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/config/config.h"
#include "core/control/control_client.h"
#include "core/control/control_link.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/plugin_registry.h"
#include "core/plugin/watchdog.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/joins.h"
#include "core/worker/device/gpus.h"
#include "core/worker/engine/engine.h"
#include "core/worker/memory/buffer.h"
#include "core/worker/memory/page_collapser.h"
#include "core/worker/session/commands.h"
#include "core/worker/session/driver.h"
#include "core/worker/session/job_setup.h"
#include "core/worker/session/open_arguments.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/request.h"
#include "core/worker/tensor/tensor.h"
#include "core/worker/timeline/timeline.h"

namespace byteps {

class Session : private Machine, private EngineHandler, private ControlHandler {
 public:
  // Opens and waits until all are there. `args` has been checked by ReadArgs.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const bps_open_args& args);
  ~Session() override;

  absl::StatusOr<Tensor*> Declare(std::string_view name, uint32_t dtype, std::span<const int64_t> shape,
                                  int32_t mode = BPS_MODE_SYNCHRONOUS);
  // Accepts an operation (its request ends, whatever happens), or refuses it. timeout 0: the session's default.
  absl::Status Submit(Submission asked);
  // The same of an operation among workers.
  absl::Status Submit(Collective asked);
  // All of them, or none.
  using Asked = std::variant<Submission, Collective>;
  absl::Status SubmitAll(std::vector<Asked> all);
  // Does it go the way of push_pull, as a Submission?
  bool TakesStages(const Collective& asked) const { return engine_->TakesStages(asked); }
  // This rank has joined (core/worker/collectives/joins.h).
  absl::Status Submit(JoinAsked asked);
  // The set of all ranks, from Open on.
  const std::shared_ptr<ProcessSet>& all_ranks() const { return all_ranks_; }
  // Workers of the job.
  uint32_t size() const { return static_cast<uint32_t>(info_.size); }
  // Asks to give an operation up. `cause`: what the other ranks hear; OK: that its caller wants it so.
  absl::Status Cancel(std::shared_ptr<Request> request, const absl::Status& cause = {});
  // Blocks until the request has ended or `deadline`; true if it has ended. `small`: worth driving the engine for.
  bool Wait(const Request& request, Time deadline, bool small);
  // As Request::WaitForStream, until the session is stuck.
  bool WaitForStream(const Request& request, Time deadline) const;
  // What an operation waits for, for people; empty if it has ended.
  std::string DescribeWait(const Request& request);
  // One look, without blocking.
  void Look(const Request& request);
  absl::Status Barrier(const std::string& name, Time timeout);
  absl::Status Shutdown(Time timeout);
  void Close();

  bps_info Info() const;
  // Writes what becomes of operations, from now on: rank 0 to `path`, others beside it (Timeline::PathOf).
  absl::Status StartTimeline(std::string_view path, bool mark_steps);
  // FAILED_PRECONDITION: none is written.
  absl::Status StopTimeline();
  // A moment or a span of the program's own, if a timeline is written.
  absl::Status Mark(TimelineEvent event, std::string_view name);

  // Memory given out; outlives the session with its last buffer.
  const std::shared_ptr<BufferTable>& buffers() const { return buffers_; }
  // Its GPUs: opened when they are first used.
  const std::shared_ptr<Gpus>& gpus() const { return gpus_; }
  // Memory of requests.
  const std::shared_ptr<BlockStock>& request_stock() const { return request_stock_; }
  const Logger& log() const { return log_; }
  // For people.
  const std::string& transport_name() const { return setup_.transport_name(); }
  const std::string& scheduler_name() const { return setup_.scheduler_name(); }
  Time operation_timeout() const { return operation_timeout_; }
  Time shutdown_timeout() const { return shutdown_timeout_; }
  // Tensors up to here are small.
  uint64_t small_bytes() const { return small_bytes_; }

  // A plugin has not come back for too long: nothing moves any more, and nothing ever will. A caller that closes the
  // session leaves it in memory, where that plugin's thread may still be.
  bool stuck() const { return driver_.abandoned(); }

  // FAILED_PRECONDITION in a forked child; otherwise OK.
  absl::Status CheckProcess() const;
  // That, and the error of a session that was shut down or has failed.
  absl::Status CheckOpen() const;

 private:
  Session(OpenArguments given, Logger log);
  absl::Status PrepareAlone();
  // `able`: what is wrong with what the user has named or set; then the coordinator is told, and nothing else done.
  absl::Status PrepareJob(Time deadline, const absl::Status& able);
  absl::Status Join(const Request& opening, Time deadline) const;
  // As the variables ask.
  absl::Status StartAskedTimeline();

  // Machine.
  bool Step(Time now) override;
  void TakeCompletions(std::vector<Completion>* completions) override;
  bool HasCompletions() const override { return !completions_.empty(); }
  bool Busy() const override { return engine_->in_flight() != 0 || !QueueEmpty(); }
  bool QueueEmpty() const override { return commands_.empty(); }
  Time NextTimer() const override;
  bool Arm() override;
  void Descriptors(std::vector<pollfd>* descriptors) override;
  void OnException(const char* what) noexcept override;

  // EngineHandler.
  void OnDeclare(const std::vector<control::TensorSpec>& tensors) override {
    control_->client().Declare(now_, tensors);
  }
  void OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) override;
  void OnLost(uint32_t member, const absl::Status& why) override;
  void OnFailed(const absl::Status& why) override;

  // ControlHandler.
  void Send(const control::Envelope& envelope) override { control_->Send(envelope); }
  void OnWelcome(const control::Welcome& welcome) override;
  void OnWaiting(const std::vector<std::string>& missing) override;
  void OnOtherRefused(const std::string& why) override;
  void OnEpoch(const control::Epoch& epoch) override;
  void TellMembers(const control::Epoch& epoch) const;
  void OnAssignment(const control::Assignment& assignment) override { engine_->OnAssignment(now_, assignment); }
  void OnPeerAddress(uint32_t member, const control::Lane& lane) override {
    engine_->collectives()->OnAddress(now_, member, lane);
  }
  void OnBarrier(const std::string& name, uint64_t sequence, const absl::Status& status) override;
  void OnGoodbye(const absl::Status& status) override;
  void OnFailure(const absl::Status& fatal) override { SetFailure(fatal); }

  bool RunCommands(Time now);
  void SubmitToEngine(Time now, Submission asked);
  void SubmitToEngine(Time now, Collective asked);
  void UseDeviceStages();
  bool DriveControl(Time now);
  void CheckOpening(Time now);
  void CheckLeaving(Time now);
  // Requests that the engine has ended are no longer in flight.
  void CollectEnded() {
    const auto ended = static_cast<int64_t>(engine_->TakeCompletions(&completions_));
    if (timeline_.on()) NoteEnded(static_cast<size_t>(ended));
    in_flight_.fetch_sub(ended);
    if (ended != 0 && !proven_.load(std::memory_order_relaxed)) proven_.store(true, std::memory_order_relaxed);
  }
  // For the timeline: collectives among workers (tensors tell of themselves), and the last of completions_.
  void NoteSubmitted(Submission* asked);
  void NoteSubmitted(const Collective& asked);
  void NoteEnded(size_t ended);
  // Takes out of completions_ what has no callback: it may end on the caller's thread.
  using Ended = absl::InlinedVector<Completion, 4>;
  void TakeQuiet(Ended* ended);
  template <typename Check>
  absl::Status Accept(int64_t operations, bool* alone, const Check& admit);
  absl::Status Admit(Asked* asked);
  absl::Status Enqueue(Command command);
  template <typename Body>
  bool SubmitHere(bool callback, const Body& submit);
  void SetFailure(const absl::Status& why);
  // On the watchdog's thread or a closing one, without the drive lock.
  void OnStuck(const absl::Status& why);
  // Until `ended`, which blocks until the time it is given, or until the session is stuck.
  void WaitOrAbandon(const std::function<bool(Time)>& ended);
  // What is left when no thread drives any more.
  void EndAll();
  void EndAllOnThread();
  // The thread that drives is held inside a plugin: says on its behalf why nothing goes on.
  void EndForStuckThread(const absl::Status& why);
  // As Request::WaitUntil, until the session is stuck.
  bool WaitUntil(const Request& request, Time deadline) const;
  // The same of anything: `wait(until)` blocks, and answers whether it is there.
  template <typename WaitFor>
  bool WaitInSlices(Time deadline, const WaitFor& wait) const;
  bool MayDrive() const {
    return proven_.load(std::memory_order_relaxed) && !has_gpus_.load(std::memory_order_relaxed);
  }
  void NoteGpus(const std::shared_ptr<GpuRound>& round) {
    if (round != nullptr) has_gpus_.store(true, std::memory_order_relaxed);
  }
  std::unique_ptr<Watchdog> MakeWatchdog();
  absl::Status failure() const { return failure_.Get(); }
  void EndWaits(const absl::Status& why);

  const ForkGuard fork_guard_;
  const std::shared_ptr<BufferTable> buffers_ = std::make_shared<BufferTable>();
  const std::shared_ptr<BlockStock> request_stock_ = std::make_shared<BlockStock>();
  const OpenArguments given_;
  Logger log_;
  const Time operation_timeout_;
  const Time shutdown_timeout_;
  const uint64_t small_bytes_;

  Timeline timeline_{&log_};
  PageCollapser collapser_;
  PluginCalls plugin_calls_;
  PluginRegistry registry_;
  std::shared_ptr<Gpus> gpus_;
  JobSetup setup_;
  std::unique_ptr<Engine> engine_;
  bool device_stage_ = false;             // the engine has it
  std::unique_ptr<ControlLink> control_;  // nullptr: a worker alone
  Time now_ = 0;
  Time control_at_ = 0;  // when the control plane was last looked at

  Commands commands_;
  std::atomic<int64_t> in_flight_{0};  // accepted operations that have not ended
  std::vector<Completion> completions_;

  // Waits of callers, ended from the control plane.
  std::shared_ptr<Request> opening_;
  std::shared_ptr<Request> leaving_;
  Time open_deadline_ = kNever;
  Time leave_deadline_ = kNever;
  bool goodbye_said_ = false;
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<Request>> barriers_;

  // Any thread.
  FirstError failure_;
  std::atomic<bool> leaving_now_{false};  // refuses new operations
  std::atomic<bool> closed_{false};
  std::atomic<bool> stuck_told_{false};
  std::atomic<bool> proven_{false};  // operations end here: callers may drive
  std::atomic<bool> has_gpus_{false};
  std::mutex shutdown_mutex_;  // one caller of Shutdown at a time
  bool shut_down_ = false;     // with shutdown_mutex_

  // Set before Open returns.
  std::shared_ptr<ProcessSet> all_ranks_;
  bool asynchronous_ = false;  // from Open on
  bps_info info_ = BPS_INFO_INIT;

  Driver driver_;  // its thread uses everything above
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SESSION_SESSION_H_
