// allocation_counts.h - how many allocations and page faults the processes of a job make, seen from one of them.
//
//     AllocationCounts counts(std::getenv(kAllocationsFile));
//     counts.Watch(true);
//     ...                                                       // a steady state, in all processes
//     counts.Watch(false);
//     for (const AllocationCount& count : counts.Take()) ...
//
// A program counts if allocation_counter.cc is linked into it, which takes the place of malloc and its relatives for
// everything in the process: the program, its shared objects, its plugins. With E2E_ALLOCATIONS in the environment, the
// name of a file of zeros that all processes share, it counts while a watcher is there; the first few are shown on
// stderr, with their stacks. What libfabric allocates itself is counted apart.
//
// Every registration of memory with libfabric allocates (fi_mr_reg), so a process that allocates nothing registers
// nothing there. (Our own shared memory takes what a registration needs from a pool.)
#ifndef BYTEPS_TESTS_E2E_ALLOCATION_COUNTS_H_
#define BYTEPS_TESTS_E2E_ALLOCATION_COUNTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace byteps {

inline constexpr char kAllocationsFile[] = "E2E_ALLOCATIONS";

// What the file holds.
struct SharedAllocationCounts {
  static constexpr size_t kProcesses = 16;
  struct Process {
    char name[32];  // "worker 0"
    std::atomic<int32_t> pid;
    std::atomic<uint64_t> own;
    std::atomic<uint64_t> provider;
  };
  std::atomic<uint32_t> watching;
  std::atomic<uint32_t> again;
  std::atomic<uint32_t> processes;
  Process of[kProcesses];
};

// Of the processes that count with this file; nullptr if it cannot be mapped.
SharedAllocationCounts* MapAllocationCounts(const char* file);

struct AllocationCount {
  std::string process;
  uint64_t own = 0;       // by BytePS and what it uses
  uint64_t provider = 0;  // by libfabric
  uint64_t faults = 0;    // minor ones, of all its threads
};

class AllocationCounts {
 public:
  // Dies with a message if the file cannot be mapped.
  explicit AllocationCounts(const char* file);
  // What counts begins anew with each `on`.
  void Watch(bool on);
  std::vector<AllocationCount> Take() const;
  // Tells all processes whether there is to be another watch. They know when they have waited for what the one that
  // tells it has done since.
  void TellAgain(bool again) { shared_->again.store(again ? 1 : 0); }
  bool again() const { return shared_->again.load() != 0; }

 private:
  using Faults = std::array<uint64_t, SharedAllocationCounts::kProcesses>;
  Faults FaultsSoFar() const;

  SharedAllocationCounts* shared_;
  Faults before_{}, after_{};
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_ALLOCATION_COUNTS_H_
