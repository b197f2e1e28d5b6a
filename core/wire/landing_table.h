// landing_table.h - numbers the places where peers may write, and joins the two halves of what arrives.
//
// An immediate is (slot, generation). A side that wants something written takes a slot, tells the writer its immediate,
// and later gets two notices in either order: the record that describes the payload, and the landing of the bytes.
//
//     LandingTable table;
//     std::optional<uint32_t> immediate = table.Take();      // or TakeRange(n) for a window of slots
//     if (table.Announce(*immediate, cookie)) ...            // record first: false; second: true
//     if (auto cookie = table.Land(*immediate)) ...          // bytes second: the cookie of the record
//     uint32_t next = table.Renew(*immediate);               // the same slot under its next generation
//     table.Free(next);
//
// A notice whose generation is not the slot's is stale: a write of a use of the slot that has ended. Stale
// landings are counted and ignored; stale records are refused.
#ifndef BYTEPS_CORE_WIRE_LANDING_TABLE_H_
#define BYTEPS_CORE_WIRE_LANDING_TABLE_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace byteps {

class LandingTable {
 public:
  // How many slots there can be at most.
  static constexpr uint32_t kCapacity = 1u << 14;

  // One slot; its immediate. Nothing if all are taken.
  std::optional<uint32_t> Take();
  // `count` slots with consecutive numbers and generation 0 (as a lease announces them); the first slot's number.
  std::optional<uint32_t> TakeRange(uint32_t count);

  // Is this the current immediate of a taken slot?
  bool Valid(uint32_t immediate) const;

  // The record has come. True if the bytes are there too. `immediate` must be Valid and not announced before.
  bool Announce(uint32_t immediate, uint64_t cookie);
  // May the record of this immediate still come (Valid, not announced)?
  bool Expects(uint32_t immediate) const;
  // The bytes have landed: the cookie, if the record has come before; nothing if not yet, or if it is stale.
  std::optional<uint64_t> Land(uint32_t immediate);

  // Ends the current use of a slot and begins the next: the new immediate.
  uint32_t Renew(uint32_t immediate);
  // Ends the use of a slot.
  void Free(uint32_t immediate);
  void FreeRange(uint32_t first_slot, uint32_t count);

  uint64_t stale() const { return stale_; }
  uint32_t taken() const { return taken_; }

 private:
  struct Slot {
    uint32_t generation = 0;
    bool taken = false;
    bool announced = false;
    bool landed = false;
    uint64_t cookie = 0;
  };
  void Release(uint32_t slot);

  std::vector<Slot> slots_;        // grows as needed
  std::vector<uint32_t> singles_;  // free slots below slots_.size(), for Take
  uint32_t taken_ = 0;
  uint64_t stale_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WIRE_LANDING_TABLE_H_
