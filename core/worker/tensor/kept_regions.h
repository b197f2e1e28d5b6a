// kept_regions.h - registrations of ordinary memory with one transport, kept from one operation of a name to the next.
//
//     KeptRegions kept(&transport);
//     absl::StatusOr<Region> region = kept.Take(name, Side::kOutput, memory);    // the operation's now
//     kept.Keep(name, Side::kOutput, memory, *std::move(region));                // its peers are done with it
//
// The fence stays what it was: an operation that fails destroys its registrations, so that no late write lands in
// memory that its user has back. One that ended well has had every write it was owed, and none is owed any more:
// its registrations may wait for the next operation of the name on the same memory.
//
// An address is no identity: memory is freed, and other memory mapped there. So only registrations that hold on to no
// page may be kept (BPS_TRANSPORT_REG_ADDRESSES); the caller sees to it.
//
// Threads: those of the transport. Destroyed before it.
#ifndef BYTEPS_CORE_WORKER_TENSOR_KEPT_REGIONS_H_
#define BYTEPS_CORE_WORKER_TENSOR_KEPT_REGIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/plugin/region.h"
#include "core/plugin/transport.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

class KeptRegions {
 public:
  enum class Side : uint8_t { kInput, kOutput };

  // At most: a transport may have room for so many and no more (shm: 32768 shown to one peer), and names may be without
  // end. When there are as many all are dropped; what is still in use comes back with its next operation.
  static constexpr size_t kMost = 8192;

  explicit KeptRegions(Transport* transport) : transport_(transport) {}

  // Registers the memory, unless that is what was kept.
  absl::StatusOr<Region> Take(const TensorName& name, Side side, std::span<std::byte> memory);
  // No peer reads or writes there any more. Nothing, if `region` is empty.
  void Keep(const TensorName& name, Side side, std::span<const std::byte> memory, Region region);
  size_t size() const { return size_; }

 private:
  struct Kept {
    const std::byte* base = nullptr;
    uint64_t bytes = 0;
    Region region;  // empty while an operation has it
  };
  // Of one side of a name, whatever the shape: the last and the one before, for who alternates between two, as
  // DistributedOptimizer does. (One operation of a name is in flight at a time.)
  using Pair = std::array<Kept, 2>;

  Transport* const transport_;
  absl::flat_hash_map<std::pair<const TensorName*, Side>, Pair> regions_;
  size_t size_ = 0;  // that are kept at the moment
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_KEPT_REGIONS_H_
