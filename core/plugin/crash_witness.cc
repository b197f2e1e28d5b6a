#include "core/plugin/crash_witness.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace byteps {
namespace {

// Its holder is the one witness of the process.
std::mutex& OneAtATime() {
  static std::mutex mutex;
  return mutex;
}

// What the handler reads: no memory is allocated in there.
char text[1024];
size_t text_size = 0;
pid_t watched_thread = 0;
struct sigaction before[8];

void Add(std::string_view more) {
  const size_t size = std::min(more.size(), sizeof text - 64 - std::min(text_size, sizeof text - 64));
  std::memcpy(text + text_size, more.data(), size);
  text_size += size;
}

void Say(std::string_view more) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, more.data(), more.size());
}

}  // namespace

CrashWitness::CrashWitness(std::string_view what) : alone_(OneAtATime()) {
  text_size = 0;
  Add(" while ");
  Add(what);
  Add(": its own code has crashed. Remove that file, or choose another plugin\n");
  watched_thread = ::gettid();
  struct sigaction action {};
  action.sa_sigaction = OnCrash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  static_assert(kSignals.size() <= sizeof before / sizeof before[0]);
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before[i]);
}

CrashWitness::~CrashWitness() { Restore(); }

void CrashWitness::Restore() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction now {};
    if (::sigaction(kSignals[i], nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) == 0) continue;
    if (now.sa_sigaction == OnCrash) ::sigaction(kSignals[i], &before[i], nullptr);
  }
}

void CrashWitness::OnCrash(int number, siginfo_t* info, void*) {
  if (::gettid() == watched_thread) {
    const char* name = ::sigabbrev_np(number);
    Say("byteps: SIG");
    Say(name == nullptr ? "?" : name);
    Say({text, text_size});
  }
  Restore();
  // A fault comes again when the instruction runs again; what was raised must be raised again.
  if (info->si_code <= 0) ::raise(number);
}

}  // namespace byteps
