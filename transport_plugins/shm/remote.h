// remote.h - the memory of a peer, as this process can reach it; what any thread may use.
//
//     Remote remote(pid, process_fd, channel, may_read);
//     remote.CopyFrom(key, offset, to, size);        // a BPS_* code
//     remote.CopyTo(key, offset, from, size);
//     remote.Map(key, offset, size, &base);
//     remote.Fetch(...)                              // for the transport: what a request of the peer names
//     remote.Stop();                                 // no copy runs any more, none will
//
// Memory that the peer has from allocate() is mapped here; other memory is reached through process_vm_readv and
// _writev, where the system permits it. A process that has ended is never written to, although its number may be in use
// again: its descriptor is looked at before each block.
//
// Who writes the peer's memory directly (CopyTo) holds its entry in the peer's ledger for the length of one block. The
// peer takes the right away and waits for the count to be zero, or for the end of this process: see Transport::Unreg.
//
// Threads: CopyFrom, CopyTo and Map on any thread, the rest on the transport's.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_REMOTE_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_REMOTE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport_plugins/shm/channel.h"
#include "transport_plugins/shm/shared_memory.h"
#include "transport_plugins/shm/unique_fd.h"

namespace byteps::shm {

class Remote {
 public:
  // `process`: a pidfd; invalid where the peer's process is not visible (pid 0). `channel`: made by the peer.
  Remote(pid_t pid, UniqueFd process, std::shared_ptr<Channel> channel);
  ~Remote();

  pid_t pid() const { return pid_; }
  int process() const { return process_.get(); }
  // Has the process ended? False where it is not visible.
  bool Ended() const;
  bool Kill();

  // May ordinary memory be reached?
  bool readable() const { return readable_.load(std::memory_order_relaxed); }
  void SetReadable(bool readable) { readable_.store(readable, std::memory_order_relaxed); }

  void AddRegion(uint64_t number, SharedMemory memory);
  // It cannot be mapped here.
  void AddUnmapped(uint64_t number);
  void RemoveRegion(uint64_t number);

  int32_t CopyFrom(const Key& key, uint64_t offset, void* to, size_t size);
  int32_t CopyTo(const Key& key, uint64_t offset, const void* from, size_t size);
  int32_t Map(const Key& key, uint64_t offset, size_t size, void** base);
  void Unmap(const Key& key) { Unpin(key.region); }
  // A pointer to write to until EndWrite. On the transport's thread.
  int32_t BeginWrite(const Key& key, uint64_t offset, size_t size, void** base);
  void EndWrite(const Key& key);
  // Bytes that the peer itself has named: at `address`, or in its shared region. 0 or an errno.
  int Fetch(uint64_t shared_region, uint64_t shared_offset, uint64_t address, void* to, size_t size);

  void Stop();

 private:
  struct Pin {
    std::shared_ptr<SharedMemory> memory;
    size_t count = 0;
  };

  std::shared_ptr<SharedMemory> Find(uint64_t region);
  // BPS_OK: this process is entered in the ledger.
  int32_t Enter(LedgerEntry* entry, const Key& key);
  // While there are pins of it, it stays mapped.
  std::byte* PinRegion(uint64_t region, const std::shared_ptr<SharedMemory>& memory);
  void Unpin(uint64_t region);
  // Why there is no memory of this key: it has not come yet, or will not.
  int32_t Absent(const Key& key);
  LedgerEntry* Entry(const Key& key) const;
  bool Revoked(const Key& key) const;

  const pid_t pid_;
  const UniqueFd process_;
  const std::shared_ptr<Channel> channel_;
  std::atomic<bool> readable_{false};

  std::shared_mutex copying_;  // held shared for the length of a block
  bool stopped_ = false;       // with copying_

  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<SharedMemory>> regions_;
  std::unordered_set<uint64_t> unmapped_;
  std::unordered_map<uint64_t, Pin> pins_;  // by region: our owner has pointers into them
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_REMOTE_H_
