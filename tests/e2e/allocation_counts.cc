#include "tests/e2e/allocation_counts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

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

std::vector<AllocationCount> AllocationCounts::Take() const {
  std::vector<AllocationCount> counts;
  for (uint32_t i = 0; i < shared_->processes.load() && i < SharedAllocationCounts::kProcesses; ++i) {
    const SharedAllocationCounts::Process& process = shared_->of[i];
    counts.push_back({process.name, process.own.load(), process.provider.load()});
  }
  return counts;
}

}  // namespace byteps
