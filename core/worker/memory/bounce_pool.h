// bounce_pool.h - registered blocks through which payloads go that the transport cannot take from where they are.
//
//     BouncePool pool(&transport, slot_bytes, blocks);
//     std::optional<uint32_t> block = pool.Take();       // nothing: all are in use, try when one came back
//     std::memcpy(pool.data(*block), input, bytes);
//     endpoint.WriteSlot(peer, pool.local(*block), bytes, slot, user);
//     pool.Free(*block);                                 // when the write has ended
//
// One copy, no registration in steady state; memory comes with the first use.
#ifndef BYTEPS_CORE_WORKER_MEMORY_BOUNCE_POOL_H_
#define BYTEPS_CORE_WORKER_MEMORY_BOUNCE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/base/aligned_memory.h"
#include "core/plugin/region.h"
#include "core/plugin/transport.h"

namespace byteps {

class BouncePool {
 public:
  BouncePool(Transport* transport, uint64_t block_bytes, uint32_t blocks)
      : transport_(transport), block_bytes_(block_bytes), blocks_(blocks) {}

  // Allocates and registers the memory, the first time. Its error is that of the registration.
  absl::Status Prepare();
  std::optional<uint32_t> Take();
  void Free(uint32_t block) { free_.push_back(block); }

  std::byte* data(uint32_t block) const { return memory_.data() + block * block_bytes_; }
  bps_local local(uint32_t block) const { return {region_.get(), data(block)}; }

 private:
  Transport* const transport_;
  const uint64_t block_bytes_;
  const uint32_t blocks_;
  AlignedMemory memory_;
  Region region_;  // behind memory_: unregistered before it is freed
  std::vector<uint32_t> free_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_MEMORY_BOUNCE_POOL_H_
