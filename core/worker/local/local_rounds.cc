#include "core/worker/local/local_rounds.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/worker/local/local_role.h"

namespace byteps {

LocalRound* LocalRounds::FindOrMake(uint64_t key, uint64_t number, size_t members) {
  const uint64_t id = wire::NameId(key);
  std::unique_ptr<Name>& name = names_[id];
  if (name == nullptr) name = std::make_unique<Name>(&memory_);
  if (number < name->next) return nullptr;
  return &name->rounds.try_emplace(number, id, number, members, &memory_).first->second;
}

LocalRound* LocalRounds::FindOf(const Operation& operation) const {
  if (!operation.asked.tensor->cut) return nullptr;
  auto name = names_.find(wire::NameId(operation.asked.tensor->cut->key()));
  if (name == names_.end()) return nullptr;
  auto round = name->second->rounds.find(operation.round);
  return round == name->second->rounds.end() || round->second.operation != &operation ? nullptr : &round->second;
}

bool LocalRounds::Submitted(uint64_t name_id, uint64_t number) const {
  const auto name = names_.find(name_id);
  if (name == names_.end()) return false;
  if (number < name->second->next) return true;
  const auto round = name->second->rounds.find(number);
  return round != name->second->rounds.end() && round->second.operation != nullptr;
}

void LocalRounds::Forget(uint64_t name_id, uint64_t number) {
  Name& name = *names_.at(name_id);
  name.next = number + 1;
  name.rounds.erase(name.rounds.begin(), name.rounds.lower_bound(name.next));
}

std::string LocalRounds::Describe() const {
  std::map<std::pair<uint64_t, uint64_t>, std::string> lines;
  for (const auto& [id, name] : names_) {
    for (const auto& [number, round] : name->rounds) lines[{id, number}] = round.Describe();
  }
  std::string text;
  for (const auto& [key, line] : lines) absl::StrAppend(&text, line, "\n");
  return text;
}

}  // namespace byteps
