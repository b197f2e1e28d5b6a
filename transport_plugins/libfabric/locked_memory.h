// locked_memory.h - whether this process may lock the memory that RDMA devices need locked.
//
//     std::string complaint = LockedMemoryComplaint(ReadLockedMemoryLimit());
//     if (!complaint.empty()) return fail(complaint);
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LOCKED_MEMORY_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LOCKED_MEMORY_H_

#include <cstdint>
#include <string>

namespace byteps::fabric {

// Below this not even a job of two can run: buffers of one peer, landing slots, blocks for copies, queues.
inline constexpr uint64_t kLeastLockedMemory = uint64_t{32} << 20;

struct LockedMemoryLimit {
  bool unlimited = false;  // no limit, or CAP_IPC_LOCK
  uint64_t bytes = 0;
};

LockedMemoryLimit ReadLockedMemoryLimit();

// "" if the limit is high enough, else one sentence that says how to raise it.
std::string LockedMemoryComplaint(const LockedMemoryLimit& limit, uint64_t least = kLeastLockedMemory);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LOCKED_MEMORY_H_
