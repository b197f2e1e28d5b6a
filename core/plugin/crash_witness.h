// crash_witness.h - while it lives, a crash of this thread says on stderr in what it happened.
//
//     const CrashWitness witness("loading the scheduler plugin /opt/plugins/libbyteps_scheduler_x.so");
//     dlopen(...);
//
// For code of others that runs once and leaves no trace of its own: the initialisers of a plugin. The signals are those
// of a defect (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS). After the line has been written the signal goes where
// it would have gone without this: to a handler of the application, or it ends the process. A crash of another thread
// meanwhile is not told.
//
// The subtle parts:
//
// Handlers. They are of the process. What the code inside has set itself is left in place at the end.
//
// Threads: any; several at a time wait for each other.
#ifndef BYTEPS_CORE_PLUGIN_CRASH_WITNESS_H_
#define BYTEPS_CORE_PLUGIN_CRASH_WITNESS_H_

#include <signal.h>

#include <array>
#include <mutex>
#include <string_view>

namespace byteps {

class CrashWitness {
 public:
  // `what`: for people; its first part, where it is very long.
  explicit CrashWitness(std::string_view what);
  ~CrashWitness();
  CrashWitness(const CrashWitness&) = delete;
  CrashWitness& operator=(const CrashWitness&) = delete;

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};

  static void OnCrash(int number, siginfo_t* info, void* context);
  // The handlers that were there before, where ours are still in place.
  static void Restore();

  const std::unique_lock<std::mutex> alone_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_CRASH_WITNESS_H_
