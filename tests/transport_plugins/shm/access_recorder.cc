#include "tests/transport_plugins/shm/access_recorder.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>

namespace byteps::testing {
namespace {

// What one recording may see.
constexpr size_t kMostReads = size_t{1} << 16;

struct Recording {
  const AccessRecorder::Pages* pages = nullptr;
  size_t count = 0;
  const std::byte** reads = nullptr;
  size_t read = 0;
};
Recording now;

void Protect(int protection) {
  for (size_t i = 0; i < now.count; ++i) {
    if (::mprotect(now.pages[i].begin, now.pages[i].bytes, protection) != 0) std::abort();
  }
}

#if defined(__x86_64__)
constexpr greg_t kTrapFlag = 0x100;
constexpr greg_t kWriteFault = 2;

bool IsWatched(const std::byte* address) {
  for (size_t i = 0; i < now.count; ++i) {
    if (address >= now.pages[i].begin && address < now.pages[i].begin + now.pages[i].bytes) return true;
  }
  return false;
}

void OnFault(int, siginfo_t* info, void* context) {
  auto* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  // Any other fault is a defect: it comes again, and ends the process.
  if (!IsWatched(address)) {
    ::signal(SIGSEGV, SIG_DFL);
    return;
  }
  if ((registers[REG_ERR] & kWriteFault) == 0) {
    if (now.read == kMostReads) std::abort();
    now.reads[now.read++] = address;
  }
  Protect(PROT_READ | PROT_WRITE);
  registers[REG_EFL] |= kTrapFlag;
}

void OnStep(int, siginfo_t*, void* context) {
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
  Protect(PROT_NONE);
}
#endif

}  // namespace

bool AccessRecorder::Possible() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

void AccessRecorder::Record(const std::function<void()>& body) {
#if defined(__x86_64__)
  std::vector<const std::byte*> reads(kMostReads);
  now = {pages_.data(), pages_.size(), reads.data(), 0};
  struct sigaction fault {
  }, step{}, fault_before{}, step_before{};
  fault.sa_sigaction = OnFault;
  step.sa_sigaction = OnStep;
  fault.sa_flags = step.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &fault, &fault_before);
  ::sigaction(SIGTRAP, &step, &step_before);
  Protect(PROT_NONE);
  body();
  Protect(PROT_READ | PROT_WRITE);
  ::sigaction(SIGSEGV, &fault_before, nullptr);
  ::sigaction(SIGTRAP, &step_before, nullptr);
  reads.resize(now.read);
  reads_ = std::move(reads);
  now = {};
#else
  body();
#endif
}

}  // namespace byteps::testing
