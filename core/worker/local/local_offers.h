// local_offers.h - the OFFERs of a round: what a member asks, and where the others find its bytes.
//
//     LocalOffers offers(&endpoint, &neighbours, &role, &memory, beyond, inline_bytes);
//     absl::Status shown = offers.Prepare(round);
//     absl::Status sent = offers.Send(round);               // ours, to every other member
//     if (const char* wrong = offers.Check(index, told)) ... // one that came
//     offers.Store(told, &round->reports[index]);
//     absl::Status same = offers.Compare(*round);            // when all are there
//
// Threads: none; driven by the thread that drives the local stage.
// Ownership: everything outlives it.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_OFFERS_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_OFFERS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/link/endpoint.h"
#include "core/wire/offer.h"
#include "core/worker/local/local_memory.h"
#include "core/worker/local/local_role.h"
#include "core/worker/local/local_round.h"
#include "core/worker/local/neighbours.h"

namespace byteps {

class LocalOffers {
 public:
  // `beyond`: there are other hosts. `inline_bytes`: what fits into an offer.
  LocalOffers(Endpoint* endpoint, const Neighbours* neighbours, const LocalRole* role, LocalMemory* memory, bool beyond,
              uint64_t inline_bytes)
      : endpoint_(endpoint),
        neighbours_(neighbours),
        role_(role),
        memory_(memory),
        beyond_(beyond),
        inline_bytes_(inline_bytes) {}

  // Makes its memory one that the others can reach, if it is not small: to be called before Send, and what
  // round->to_show names is to be copied in between.
  absl::Status Prepare(LocalRound* round);
  // Offers a round to every other member.
  absl::Status Send(LocalRound* round);
  // What is wrong with the offer of this member; nullptr: nothing.
  const char* Check(size_t index, const Offer& told) const;
  // A member's offer, checked.
  static void Store(const Offer& told, LocalReport* report);
  // Do all members ask the same? The text of an error is the same on all of them.
  absl::Status Compare(const LocalRound& round) const;

 private:
  // Writes the keys for this member; returns their size. UNAVAILABLE: it is lost.
  absl::StatusOr<size_t> ShowTo(size_t index, const LocalRound& round, uint8_t* keys);
  static size_t KeyBytes(const wire::OfferBody& offer);

  Endpoint* const endpoint_;
  const Neighbours* const neighbours_;
  const LocalRole* const role_;
  LocalMemory* const memory_;
  const bool beyond_;
  const uint64_t inline_bytes_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_OFFERS_H_
