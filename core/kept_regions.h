// kept_regions.h - registrations of ordinary memory with one transport, kept from one operation of a tensor to the next.
//
//     KeptRegions kept(&transport);
//     absl::StatusOr<Region> region = kept.Take(*tensor, Side::kOutput, output);    // the operation's now
//     kept.Keep(*tensor, Side::kOutput, output, *std::move(region));                // it has ended well
//
// The fence stays what it was: an operation that fails destroys its registrations, so that no late write lands in memory
// that its user has back. One that ended well has had every write it was owed, and nobody is left who owes one: its
// registrations may wait for the next operation of the tensor on the same memory.
//
// An address is no identity: memory is freed, and other memory mapped there. So nothing is kept of a transport whose
// registrations hold on to pages (without BPS_TRANSPORT_REG_ADDRESSES): the next operation there registers anew.
//
// Threads: those of the transport. Destroyed before it.
#ifndef BYTEPS_CORE_KEPT_REGIONS_H_
#define BYTEPS_CORE_KEPT_REGIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/region.h"
#include "core/tensor.h"
#include "core/transport.h"

namespace byteps {

class KeptRegions {
 public:
  enum class Side : uint8_t { kInput, kOutput };

  explicit KeptRegions(Transport* transport) : transport_(transport) {}

  // Registers the tensor's bytes at `base`, unless that is what was kept.
  absl::StatusOr<Region> Take(const Tensor& tensor, Side side, std::byte* base);
  // No peer reads or writes there any more. Nothing, if `region` is empty.
  void Keep(const Tensor& tensor, Side side, const std::byte* base, Region region);
  // Of all tensors.
  size_t size() const;

 private:
  struct Kept {
    const std::byte* base = nullptr;
    Region region;  // empty while an operation has it
  };
  // Of one side of a tensor: the last and the one before, for who alternates between two, as DistributedOptimizer does.
  using Pair = std::array<Kept, 2>;

  Transport* const transport_;
  absl::flat_hash_map<std::pair<const Tensor*, Side>, Pair> regions_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_KEPT_REGIONS_H_
