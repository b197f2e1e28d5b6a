// local_role.h - what this worker is to an operation of the local stage.
//
//     const LocalRole role(&neighbours, beyond, inline_bytes);
//     if (role.Small(round)) ... role.Leader(operation)
//     if (role.Root(operation)) ...
//
// Threads: any; nothing in it changes.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROLE_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROLE_H_

#include <cstddef>
#include <cstdint>

#include "core/worker/local/local_round.h"
#include "core/worker/local/neighbours.h"
#include "core/worker/tensor/operation.h"

namespace byteps {

bool IsPushPull(const Operation& operation);

class LocalRole {
 public:
  // `beyond`: there are other hosts. `inline_bytes`: what fits into an offer.
  LocalRole(const Neighbours* neighbours, bool beyond, uint64_t inline_bytes)
      : neighbours_(neighbours), beyond_(beyond), inline_bytes_(inline_bytes) {}

  bool Root(const Operation& operation) const;  // of a broadcast
  // Has it a source that the others need?
  bool HasSource(const Operation& operation) const;
  // Must the others reach a target that is not the source?
  bool NeedsTargetAccess(const LocalRound& round) const;
  // Is it a broadcast of which the root is on another host?
  bool RootIsRemote(const Operation& operation) const;
  // Is anything written into the others' targets?
  bool Writes(const Operation& operation) const;

  // Does it travel inside the offer?
  bool Small(const LocalRound& round) const;
  // Whose a small tensor is where there are servers.
  size_t Leader(const Operation& operation) const;

 private:
  const Neighbours* const neighbours_;
  const bool beyond_;
  const uint64_t inline_bytes_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROLE_H_
