#include "server/reducer/part_table.h"

namespace byteps {

Part* PartTable::Find(uint64_t name, uint32_t number) const {
  auto it = parts_.find({name, number});
  return it == parts_.end() ? nullptr : it->second.get();
}

Part* PartTable::FindOrMake(uint64_t name, uint32_t number) {
  std::unique_ptr<Part>& part = parts_[{name, number}];
  if (part == nullptr) {
    part = std::make_unique<Part>();
    part->name = name;
    part->number = number;
    part->table = this;
  }
  return part.get();
}

void PartTable::Unlink(Part* part) {
  (part->older_ != nullptr ? part->older_->newer_ : oldest_) = part->newer_;
  (part->newer_ != nullptr ? part->newer_->older_ : newest_) = part->older_;
  part->older_ = part->newer_ = nullptr;
  part->idle_ = false;
  --idle_;
}

void PartTable::SetBusy(Part* part) {
  if (part->idle_) Unlink(part);
}

void PartTable::SetIdle(Part* part) {
  if (part->idle_) Unlink(part);
  part->idle_ = true;
  part->older_ = newest_;
  (newest_ != nullptr ? newest_->newer_ : oldest_) = part;
  newest_ = part;
  if (++idle_ <= most_idle_) return;
  Part* forgotten = oldest_;
  Unlink(forgotten);
  parts_.erase({forgotten->name, forgotten->number});
}

}  // namespace byteps
