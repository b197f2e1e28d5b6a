#include "core/worker/collectives/round_table.h"

namespace byteps {

PeerRound* RoundTable::Submit(uint64_t id) {
  const uint64_t number = submitted(id);
  PeerRound* round = FindOrMake(id, number);
  submitted_[id] = number + 1;
  return round;
}

void RoundTable::Skip(uint64_t id) {
  const uint64_t number = submitted_[id]++;
  if (const PeerRound* round = Find(id, number)) Erase(round);
}

void RoundTable::Advance(uint64_t id, uint64_t number) {
  uint64_t& submitted = submitted_[id];
  if (submitted >= number) return;
  for (auto round = rounds_.lower_bound({id, submitted}); round != rounds_.end() && round->first < Key{id, number};) {
    by_serial_.erase(round->second->serial());
    round = rounds_.erase(round);
  }
  submitted = number;
}

uint64_t RoundTable::submitted(uint64_t id) const {
  const auto found = submitted_.find(id);
  return found == submitted_.end() ? 0 : found->second;
}

PeerRound* RoundTable::Find(uint64_t id, uint64_t number) const {
  const auto found = rounds_.find({id, number});
  return found == rounds_.end() ? nullptr : found->second.get();
}

PeerRound* RoundTable::FindOrMake(uint64_t id, uint64_t number) {
  if (PeerRound* round = Find(id, number)) return round;
  if (number < submitted(id)) return nullptr;
  std::unique_ptr<PeerRound>& made = rounds_[{id, number}];
  made = std::make_unique<PeerRound>(id, number, ++last_serial_);
  by_serial_[made->serial()] = made.get();
  return made.get();
}

PeerRound* RoundTable::FindSerial(uint64_t serial) const {
  const auto found = by_serial_.find(serial);
  return found == by_serial_.end() ? nullptr : found->second;
}

void RoundTable::Erase(const PeerRound* round) {
  by_serial_.erase(round->serial());
  rounds_.erase({round->id(), round->number()});
}

void RoundTable::Clear() {
  by_serial_.clear();
  rounds_.clear();
}

std::vector<PeerRound*> RoundTable::All() const {
  std::vector<PeerRound*> all;
  all.reserve(rounds_.size());
  for (const auto& [key, round] : rounds_) all.push_back(round.get());
  return all;
}

std::vector<PeerRound*> RoundTable::Submitted() const {
  std::vector<PeerRound*> all;
  for (const auto& [key, round] : rounds_) {
    if (round->asked().request != nullptr) all.push_back(round.get());
  }
  return all;
}

}  // namespace byteps
