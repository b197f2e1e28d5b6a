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

#include "abi/transport.h"
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

class Region {
 public:
  Region(const MemoryDomain& memory, void* base, size_t size) : memory_(memory), base_(base), size_(size) {}
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
  const MemoryDomain memory_;
  void* const base_;
  const size_t size_;
  FidPtr<fid_mr> local_;
  std::unordered_map<bps_peer, FidPtr<fid_mr>> grants_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_REGION_H_
