// local_role.h - what this worker is to an operation of the local stage.
//
//     const LocalRole role(&neighbours, servers, inline_bytes);
//     if (role.Small(operation)) ... role.Leader(operation)
//     if (role.Root(operation)) ...
//
// Threads: any; nothing in it changes.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROLE_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROLE_H_

#include <cstddef>
#include <cstdint>

#include "core/worker/local/neighbours.h"
#include "core/worker/tensor/operation.h"

namespace byteps {

// The key of a tensor without its shape: what the handles of one name have in common.
inline uint64_t NameIdOf(uint64_t key) { return key >> 16; }

bool IsPushPull(const Operation& operation);

class LocalRole {
 public:
  // `servers`: there are other hosts. `inline_bytes`: what fits into an offer.
  LocalRole(const Neighbours* neighbours, bool servers, uint64_t inline_bytes)
      : neighbours_(neighbours), servers_(servers), inline_bytes_(inline_bytes) {}

  bool Root(const Operation& operation) const;   // of a broadcast
  bool Gives(const Operation& operation) const;  // has an input that the others need
  // Must the others reach an output that is not the input?
  bool Takes(const Operation& operation) const;
  // Is it a broadcast of which the root is on another host?
  bool FromAfar(const Operation& operation) const;
  // Is anything written into the others' outputs?
  bool Writes(const Operation& operation) const;

  bool Small(const Operation& operation) const;
  // Whose a small tensor is where there are servers.
  size_t Leader(const Operation& operation) const;

 private:
  const Neighbours* const neighbours_;
  const bool servers_;
  const uint64_t inline_bytes_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROLE_H_
