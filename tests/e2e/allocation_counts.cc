#include "tests/e2e/allocation_counts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace byteps {

SharedAllocationCounts* MapAllocationCounts(const char* file) {
  const int fd = ::open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* memory = ::mmap(nullptr, sizeof(SharedAllocationCounts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<SharedAllocationCounts*>(memory);
}

AllocationCounts::AllocationCounts(const char* file) : shared_(file == nullptr ? nullptr : MapAllocationCounts(file)) {
  if (shared_ != nullptr) return;
  std::fprintf(stderr, "%s: the file %s cannot be mapped\n", kAllocationsFile, file == nullptr ? "(unset)" : file);
  std::abort();
}

// With nothing that allocates, or might touch a page for the first time in between.
AllocationCounts::Faults AllocationCounts::FaultsSoFar() const {
  Faults faults{};
  for (uint32_t i = 0; i < shared_->processes.load() && i < SharedAllocationCounts::kProcesses; ++i) {
    char path[64], text[1024] = "";
    std::snprintf(path, sizeof path, "/proc/%d/stat", shared_->of[i].pid.load());
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    const ssize_t size = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    // Behind the name, which may contain anything: state, six numbers, flags, and the faults.
    const char* name_end = size > 0 ? std::strrchr(text, ')') : nullptr;
    unsigned long count = 0;
    if (name_end != nullptr && std::sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %*u %lu", &count) == 1) {
      faults[i] = count;
    }
  }
  return faults;
}

void AllocationCounts::Watch(bool on) {
  if (on) {
    for (SharedAllocationCounts::Process& process : shared_->of) process.own = process.provider = 0;
    before_ = FaultsSoFar(), before_ = FaultsSoFar();  // twice: the first touches what it needs itself
  }
  shared_->watching.store(on ? 1 : 0);
  if (!on) after_ = FaultsSoFar();
}

std::vector<AllocationCount> AllocationCounts::Take() const {
  std::vector<AllocationCount> counts;
  for (uint32_t i = 0; i < shared_->processes.load() && i < SharedAllocationCounts::kProcesses; ++i) {
    const SharedAllocationCounts::Process& process = shared_->of[i];
    counts.push_back({process.name, process.own.load(), process.provider.load(), after_[i] - before_[i]});
  }
  return counts;
}

}  // namespace byteps
