// slot_leases.h - the slots that a peer has lent: memory of its own that it may be written into.
//
//     std::string wrong = leases.OnLease(body);              // a LEASE has come; empty: nothing is wrong with it
//     std::optional<RemoteSlot> slot = leases.Take();
//     leases.RemoteOf(*slot)                                 // where to write
//     leases.GiveBack(*slot);                                // it was not used
//     wrong = leases.OnReturn(body);                         // the peer lends slots again
//
// A peer may send anything: what it says is checked against what it has lent and what was taken.
//
// Threads: none.
#ifndef BYTEPS_CORE_LINK_SLOT_LEASES_H_
#define BYTEPS_CORE_LINK_SLOT_LEASES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "core/wire/wire.h"

namespace byteps {

// A slot of the peer's memory that may be written once.
struct RemoteSlot {
  uint32_t immediate = 0;  // announces the write
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class SlotLeases {
 public:
  // What is wrong with the record, for people; empty: it was taken.
  std::string OnLease(std::span<const std::byte> body);
  std::string OnReturn(std::span<const std::byte> body);

  // That may be written now.
  size_t free() const { return free_.size(); }
  // That were taken, and not given back by the peer.
  size_t taken() const { return lent_ - free_.size(); }
  std::optional<RemoteSlot> Take();
  // Taken, but not used.
  void GiveBack(const RemoteSlot& slot);
  // Valid as long as this; nothing: the slot is of none of its leases.
  std::optional<bps_remote> RemoteOf(const RemoteSlot& slot) const;

 private:
  struct Lease {
    wire::LeaseBody body;
    std::vector<bool> taken;  // by slot: to be written, or written, and not returned yet
  };
  const Lease* Find(uint32_t slot) const;
  Lease* Find(uint32_t slot) { return const_cast<Lease*>(static_cast<const SlotLeases*>(this)->Find(slot)); }

  std::vector<Lease> leases_;
  size_t lent_ = 0;
  std::vector<RemoteSlot> free_;  // the last one given back is taken first
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_SLOT_LEASES_H_
