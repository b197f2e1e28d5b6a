// driver.h - which thread runs a machine: a thread of its own, or, for a moment, a caller that waits for it.
//
//     Driver driver(&machine, spin);
//     driver.Start("byteps-io");
//     queue.Push(work); driver.Wake();                    // any thread: there is something new
//     driver.Run([&] { engine.Cancel(now, request); });   // any thread: inside the machine
//     driver.DriveUntil(*request, deadline);              // a caller runs the machine itself until the request ends
//     driver.Stop();
//
// A machine is stepped by one thread at a time: the thread that holds the drive lock. Its own thread (the I/O thread)
// steps it while there is something to do, yields for `spin`, and then blocks in poll(2) on the machine's descriptors,
// without the lock. So a caller finds the lock free, and can do a small thing at once instead of waking another thread
// for it.
//
// The subtle parts:
//
// Two sleepers. While a caller drives, the I/O thread is parked: it does not look at the machine's descriptors, only at
//               a descriptor of its own, by which it is called back. A drive that was short and left nothing to do does
//               not call it back: it looks by itself every kParkTime, so that a stream of small operations costs no
//               wake-ups.
// No lost wake. A thread that goes to sleep counts itself as a sleeper, then checks the queue; a thread that hands work
//               over pushes it, then checks for sleepers. Both are sequentially consistent, so one sees the other.
//               A signal wakes both sleepers, but the one that runs first may clear it before the other has looked: a
//               caller that leaves signals again if the I/O thread still sleeps past something (Changed).
// No lost end.  Completions run without the lock. Meanwhile a caller may come whose request is among them, find nothing
//               to do and go to sleep. So the thread that has run completions checks for sleepers afterwards, and a
//               caller checks its request once more when it counts as a sleeper.
// Callbacks.    Completions run without the lock, on the I/O thread or on that of a caller inside DriveUntil;
//               InCallback() is true meanwhile on that thread.
// Exceptions.   One guard on each thread that enters the machine: what is thrown there goes to Machine::OnException,
//               and the drive lock is free again. Run and TryRun do not throw what their body throws.
// Abandoned.    A thread that is inside the machine and never comes back keeps the lock for good. The watchdog
//               calls Abandon then: Run and DriveUntil give up, and Stop leaves that thread behind; so machine and
//               driver must stay where they are.
// Threads:      Wake, Run, TryRun and DriveUntil on any thread; Start and Stop once.
#ifndef BYTEPS_CORE_WORKER_SESSION_DRIVER_H_
#define BYTEPS_CORE_WORKER_SESSION_DRIVER_H_

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/base/time.h"
#include "core/base/waker.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/watched_thread.h"
#include "core/worker/tensor/request.h"

namespace byteps {

// What is driven. Every function is called with the drive lock held.
class Machine {
 public:
  virtual ~Machine() = default;
  // One round of progress; true if anything happened.
  virtual bool Step(Time now) = 0;
  // Appends the requests that ended; the thread that takes them runs them.
  virtual void TakeCompletions(std::vector<Completion>* completions) = 0;
  virtual bool HasCompletions() const = 0;
  // Is there work in flight, or handed over and not yet looked at?
  virtual bool Busy() const = 0;
  // Nothing is handed over that Step has not seen. May be asked right before blocking.
  virtual bool QueueEmpty() const = 0;
  // When Step must be called although no descriptor is ready.
  virtual Time NextTimer() const = 0;
  // Is it safe to block on the descriptors?
  virtual bool Arm() = 0;
  // Appends what to wait for.
  virtual void Descriptors(std::vector<pollfd>* descriptors) = 0;
  // One of the functions above, or a body that was run inside the machine, has thrown: a defect, or no memory.
  virtual void OnException(const char* what) noexcept = 0;
};

class Driver {
 public:
  static constexpr Time kParkTime = 2 * kMillisecond;

  // `spin`: how long an idle thread yields before it blocks.
  // `calls`: what the thread inside the machine calls of device plugins is told here; it outlives the driver.
  Driver(Machine* machine, Time spin, PluginCalls* calls = nullptr) : machine_(machine), spin_(spin), calls_(calls) {}
  ~Driver() { Stop(kNever); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Throws std::system_error if there is no thread to be had.
  void Start(const char* thread_name);
  // Ends the I/O thread. Completions that were not taken stay with the machine. False: it had not ended by `deadline`;
  // to be called again.
  bool Stop(Time deadline = kNever);
  // No thread will ever get the lock again.
  void Abandon() { abandoned_.store(true); }
  bool abandoned() const { return abandoned_.load(); }

  // Something was handed over.
  void Wake();

  // Runs `body` with the lock, soon. False: no thread gets the lock until `deadline`, or ever; `body` did not run.
  bool Run(const std::function<void()>& body, Time deadline = kNever);
  // Runs `body` if no other thread drives just now. `called_back`: one must watch the machine afterwards, at once.
  template <typename Body>
  bool TryRun(Body&& body, bool called_back) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    Guarded(body);
    const bool wake = Changed();
    lock.unlock();
    Hand(wake, called_back);
    return true;
  }

  // Waits for a request, running the machine meanwhile. True if the request has ended.
  bool DriveUntil(const Request& request, Time deadline);

  // How long the longest step took after which there was another at once: for so long this process may have said
  // nothing to its peers. To be asked when no thread drives.
  Time longest_step() const { return longest_step_; }

  // Is this thread inside a callback of ours?
  static bool InCallback();

  // Runs completions as callbacks on this thread.
  void Deliver(std::span<Completion> completions);

 private:
  // With the lock: the only way into the machine.
  template <typename Body>
  void Guarded(Body&& body) {
    const WatchedThread::Scope watched(calls_);
    try {
      body();
    } catch (const std::exception& error) {
      machine_->OnException(error.what());
    } catch (...) {
      machine_->OnException("not a std::exception");
    }
  }
  void Loop();
  // Blocks. False: not until `deadline`, or never.
  bool LockUntil(std::unique_lock<std::mutex>* lock, Time deadline);
  // With the lock, at the beginning of a step. `last`: when the one before began, if it has worked; else 0.
  void NoteStep(Time now, Time last) {
    if (last != 0) longest_step_ = std::max(longest_step_, now - last);
  }
  // With the lock: does the I/O thread have to hear of what was done?
  bool Changed();
  void Hand(bool wake, bool called_back);
  void Park();
  // With the lock. True if the caller may block on `descriptors` until `until`; then it counts as a sleeper.
  bool Prepare(Time now, std::vector<pollfd>* descriptors, Time* until);
  void Block(std::vector<pollfd>* descriptors, Time until);

  Machine* const machine_;
  const Time spin_;
  PluginCalls* const calls_;
  std::mutex mutex_;              // the drive lock
  std::atomic<int> wanted_{0};    // threads that wait for it
  std::atomic<int> sleepers_{0};  // threads that block on the machine's descriptors, or are about to
  std::atomic<bool> signalled_{false};
  std::atomic<bool> ringing_{false};  // the waker has woken a thread and is still set
  Waker waker_;                       // for threads that block on the machine's descriptors
  Waker handback_;                    // for the parked I/O thread
  std::atomic<bool> parked_{false};
  std::atomic<bool> driving_{false};  // a caller is inside DriveUntil
  // Of that caller: kept, so that a drive allocates nothing.
  std::vector<Completion> drive_completions_;
  std::vector<pollfd> drive_descriptors_;
  std::atomic<uint64_t> drives_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> ended_{false};  // the thread has nothing more to do with the machine
  std::atomic<bool> abandoned_{false};
  Time longest_step_ = 0;  // with the lock
  Time asleep_until_ = 0;  // with the lock: until when the I/O thread blocks; 0: it does not
  std::thread thread_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SESSION_DRIVER_H_
