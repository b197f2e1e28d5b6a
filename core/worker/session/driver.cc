#include "core/worker/session/driver.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace byteps {
namespace {

// A drive longer than this calls the I/O thread back at its end.
constexpr Time kShortDrive = kMillisecond;

// While another thread has the lock: so many yields, then naps of so many microseconds.
constexpr int kYields = 2000;
constexpr unsigned kNap = 100;

thread_local int callbacks_running = 0;

struct CallbackScope {
  CallbackScope() { ++callbacks_running; }
  ~CallbackScope() { --callbacks_running; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
};

void SleepOn(std::span<pollfd> descriptors, Time until) {
  timespec timeout{};
  timespec* limit = nullptr;
  if (until != kNever) {
    const Time left = std::max<Time>(until - Now(), 0);
    timeout.tv_sec = left / kSecond;
    timeout.tv_nsec = left % kSecond;
    limit = &timeout;
  }
  ::ppoll(descriptors.data(), descriptors.size(), limit, nullptr);
}

}  // namespace

bool Driver::InCallback() { return callbacks_running > 0; }

void Driver::Deliver(std::span<Completion> completions) {
  if (completions.empty()) return;
  const CallbackScope scope;
  for (Completion& completion : completions) completion.Run();
  Wake();
}

void Driver::Start(const char* thread_name) {
  // Signals belong to the host's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] {
      Loop();
      ended_.store(true);
    });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_setname_np(thread_.native_handle(), thread_name);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Driver::Stop(Time deadline) {
  if (!thread_.joinable()) return true;
  stop_.store(true);
  waker_.Signal();
  handback_.Signal();
  for (int tries = 0; !ended_.load() && !abandoned_.load(); ++tries) {
    if (Now() >= deadline) return false;
    tries < kYields ? void(::sched_yield()) : void(::usleep(kNap));
  }
  abandoned_.load() ? thread_.detach() : thread_.join();
  return true;
}

// A step of the machine is short: by far most waits end within some yields. (Not a timed mutex: gcc's thread sanitizer
// does not know those.)
bool Driver::LockUntil(std::unique_lock<std::mutex>* lock, Time deadline) {
  for (int tries = 0; !lock->try_lock(); ++tries) {
    if (abandoned_.load() || (tries % 16 == 15 && Now() >= deadline)) return false;
    if (tries < kYields) {
      ::sched_yield();
    } else {
      ::usleep(kNap);
    }
  }
  return true;
}

void Driver::Wake() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  if (!signalled_.exchange(true, std::memory_order_seq_cst)) waker_.Signal();
}

bool Driver::Run(const std::function<void()>& body, Time deadline) {
  wanted_.fetch_add(1);
  Wake();  // a caller that drives keeps the lock while it blocks
  {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    const bool locked = LockUntil(&lock, deadline);
    wanted_.fetch_sub(1);
    if (!locked) return false;
    Guarded(body);
  }
  // What it led to is looked at by the thread that drives next.
  signalled_.store(true);
  waker_.Signal();
  if (parked_.load()) handback_.Signal();
  return true;
}

// The sleeping I/O thread hears of what arrives; of a nearer timer or of unfinished work only from us, and of what was
// handed over if we have taken the signal.
bool Driver::Changed() {
  return machine_->HasCompletions() ||
         (asleep_until_ != 0 && (machine_->NextTimer() < asleep_until_ || !machine_->QueueEmpty() || !machine_->Arm()));
}

void Driver::Hand(bool wake, bool called_back) {
  if (wake) waker_.Signal();
  if ((wake || called_back) && parked_.load()) handback_.Signal();
}

bool Driver::Prepare(Time now, std::vector<pollfd>* descriptors, Time* until) {
  // First, since it may throw: a sleeper that is counted must sleep.
  descriptors->clear();
  descriptors->push_back({waker_.fd(), POLLIN, 0});
  machine_->Descriptors(descriptors);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  // Only here, with the lock: a thread that woke without it could take away a signal meant for the next sleeper.
  if (ringing_.exchange(false)) waker_.Clear();
  // After counting ourselves, the last look: see "No lost wake" in the header.
  signalled_.store(false, std::memory_order_seq_cst);
  *until = machine_->NextTimer();
  if (wanted_.load() > 0 || stop_.load() || !machine_->QueueEmpty() || *until <= now || !machine_->Arm()) {
    sleepers_.fetch_sub(1);
    return false;
  }
  return true;
}

void Driver::Block(std::vector<pollfd>* descriptors, Time until) {
  SleepOn(*descriptors, until);
  sleepers_.fetch_sub(1);
  if ((*descriptors)[0].revents != 0) ringing_.store(true);
}

void Driver::Loop() {
  std::vector<pollfd> descriptors;
  std::vector<Completion> completions;
  Time worked_at = Now(), step = 0;
  while (!stop_.load()) {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (driving_.load() || wanted_.load() > 0 || !lock.try_lock()) {
      Park();
      worked_at = Now();
      step = 0;
      continue;
    }
    const Time now = Now();
    NoteStep(now, step);
    asleep_until_ = 0;
    bool worked = false;
    bool block = false;
    Time until = 0;
    Guarded([&] {
      worked = machine_->Step(now);
      machine_->TakeCompletions(&completions);
      if (!worked && completions.empty() && now - worked_at >= spin_) {
        block = Prepare(now, &descriptors, &until);
        if (block) asleep_until_ = until;
      }
    });
    // (What callbacks take is the application's.)
    step = worked && completions.empty() ? now : 0;
    lock.unlock();
    Deliver(completions);
    completions.clear();
    if (worked) {
      worked_at = now;
    } else if (block) {
      Block(&descriptors, until);
      worked_at = Now();
    } else {
      ::sched_yield();
    }
  }
}

void Driver::Park() {
  if (!driving_.load()) {
    // Another thread has the lock for a moment.
    ::sched_yield();
    return;
  }
  parked_.store(true);
  const uint64_t drive = drives_.load();
  pollfd descriptor = {handback_.fd(), POLLIN, 0};
  SleepOn({&descriptor, 1}, After(Now(), kParkTime));
  if (descriptor.revents == 0 && driving_.load() && drives_.load() == drive && !stop_.load()) {
    // This drive has become a long one: it will call.
    SleepOn({&descriptor, 1}, kNever);
  }
  if (descriptor.revents != 0) handback_.Clear();
  parked_.store(false);
}

bool Driver::DriveUntil(const Request& request, Time deadline) {
  // In this order, before another thread can see that we drive: a parked I/O thread that saw the same drive for
  // kParkTime relies on being called at its end, however long we were preempted in here.
  const Time began = Now();
  drives_.fetch_add(1);
  if (driving_.exchange(true)) {
    // One caller is enough.
    return request.WaitUntil(deadline);
  }
  wanted_.fetch_add(1);
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  const bool locked = LockUntil(&lock, deadline);
  wanted_.fetch_sub(1);
  if (!locked) {
    driving_.store(false);
    handback_.Signal();
    return request.ended();
  }
  Time worked_at = Now(), step = 0;
  while (!request.ended() && !stop_.load()) {
    const Time now = Now();
    NoteStep(now, step);
    if (now >= deadline) break;
    bool worked = false;
    bool block = false;
    Time until = 0;
    Guarded([&] {
      worked = machine_->Step(now);
      machine_->TakeCompletions(&drive_completions_);
      if (!worked && drive_completions_.empty() && wanted_.load() == 0 && now - worked_at >= spin_) {
        block = Prepare(now, &drive_descriptors_, &until);
      }
    });
    step = worked && drive_completions_.empty() && wanted_.load() == 0 ? now : 0;
    if (block) {
      // It may have ended on the thread that drove before: see "No lost end" in the header.
      Block(&drive_descriptors_, request.ended() ? now : std::min(until, deadline));
      worked_at = Now();
    } else if (!drive_completions_.empty() || wanted_.load() > 0) {
      lock.unlock();
      Deliver(drive_completions_);
      drive_completions_.clear();
      if (wanted_.load() > 0) ::sched_yield();
      lock.lock();
      worked_at = now;
    } else if (worked) {
      worked_at = now;
    } else {
      ::sched_yield();
    }
  }
  const bool busy = machine_->Busy();
  // A signal for the I/O thread that this drive has taken away, or a timer that it has set, is the I/O thread's again.
  const bool wake = Changed();
  lock.unlock();
  driving_.store(false);
  if (wake) waker_.Signal();
  if (busy || Now() - began >= kShortDrive) handback_.Signal();
  // After Stop the thread that stopped ends the request.
  return request.WaitUntil(deadline);
}

}  // namespace byteps
