// region.h - a range of this process's memory that operations may use and that peers may be let into.
//
//     Region region(endpoint.memory(), base, size);
//     region.GrantTo(peer, &key);   // what export_key hands out
//     region.Withdraw(peer);        // that peer's writes are refused from now on
//
// Each peer gets a registration, and a random key, of its own: taking one back does not disturb the others.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_REGION_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_REGION_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "abi/transport.h"
#include "transport_plugins/common/unique_fd.h"
#include "transport_plugins/libfabric/fid.h"
#include "transport_plugins/libfabric/memory_domain.h"

namespace byteps::fabric {

// What a peer needs to write here; these bytes are the exported key.
struct Key {
  uint64_t key;
  uint64_t base;  // of the region as the provider counts: its address, or 0
  uint64_t size;
};
static_assert(sizeof(Key) == 24 && sizeof(Key) <= BPS_TRANSPORT_MAX_KEY);

// Whose memory it is, if not this machine's: a GPU's (CUDA), for domains that were opened with FI_HMEM.
struct DeviceMemory {
  int id = -1;                  // which GPU; -1: none's
  transports::UniqueFd dmabuf;  // of the whole region; empty: the provider finds it by its address

  // Its descriptor is duplicated: peers are let in later.
  static DeviceMemory Of(const bps_device_memory& memory);
};

class Region {
 public:
  Region(const MemoryDomain& memory, void* base, size_t size) : memory_(memory), base_(base), size_(size) {}
  Region(const MemoryDomain& memory, void* base, size_t size, DeviceMemory device)
      : memory_(memory), base_(base), size_(size), device_(std::move(device)) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // For providers that want local memory registered. 0 or a libfabric code.
  int RegisterLocal();

  std::byte* base() const { return static_cast<std::byte*>(base_); }
  size_t size() const { return size_; }
  // Whether [offset, offset + size) lies within.
  bool HasRange(uint64_t offset, uint64_t size) const { return offset <= size_ && size <= size_ - offset; }
  // Whether [at, at + size) lies within.
  bool Contains(const void* at, size_t size) const;
  void* descriptor() const { return local_ == nullptr ? nullptr : fi_mr_desc(local_.get()); }

  // The same answer for the same peer until Withdraw. `wanted`: this number, where keys are ours to choose; else a
  // random one. 0 or a libfabric code.
  int GrantTo(bps_peer peer, Key* key, const uint64_t* wanted = nullptr);
  void Withdraw(bps_peer peer) { grants_.erase(peer); }
  void WithdrawAll() { grants_.clear(); }
  // Whether `peer` was let in, and by which key.
  bool GrantedTo(bps_peer peer, uint64_t* key) const;

 private:
  // 0 or a libfabric code.
  int Register(uint64_t access, uint64_t number, FidPtr<fid_mr>* registration);

  const MemoryDomain memory_;
  void* const base_;
  const size_t size_;
  DeviceMemory device_;
  FidPtr<fid_mr> local_;
  std::unordered_map<bps_peer, FidPtr<fid_mr>> grants_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_REGION_H_
