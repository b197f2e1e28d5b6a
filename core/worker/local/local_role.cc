#include "core/worker/local/local_role.h"

#include <optional>

#include "core/wire/wire.h"
#include "core/worker/tensor/part_owners.h"

namespace byteps {

bool IsPushPull(const Operation& operation) { return operation.asked.kind == wire::Operation::kPushPull; }

bool LocalRole::Root(const Operation& operation) const {
  return !IsPushPull(operation) && static_cast<uint32_t>(operation.asked.root) == neighbours_->own_rank();
}

bool LocalRole::HasSource(const Operation& operation) const { return IsPushPull(operation) || Root(operation); }

bool LocalRole::NeedsTargetAccess(const LocalRound& round) const {
  const Operation& operation = *round.operation;
  // Where it is in place, what can be read can be written.
  return IsPushPull(operation) ? !round.areas.in_place() : beyond_ && RootIsRemote(operation);
}

bool LocalRole::RootIsRemote(const Operation& operation) const {
  return !IsPushPull(operation) && !neighbours_->Find(operation.asked.root).has_value();
}

bool LocalRole::Writes(const Operation& operation) const {
  return IsPushPull(operation) || (beyond_ && RootIsRemote(operation));
}

bool LocalRole::Small(const LocalRound& round) const { return round.bytes() <= inline_bytes_; }

size_t LocalRole::Leader(const Operation& operation) const {
  if (!IsPushPull(operation)) {
    if (const std::optional<size_t> root = neighbours_->Find(operation.asked.root)) return *root;
  }
  return LeaderOf(wire::NameId(operation.asked.tensor->cut->key()), neighbours_->size());
}

}  // namespace byteps
