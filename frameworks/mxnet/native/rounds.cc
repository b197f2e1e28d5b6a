#include "frameworks/mxnet/native/rounds.h"

#include <unordered_map>

namespace byteps::mxnet {

Rounds& Rounds::Of(const void* turn) {
  // Never destroyed: threads of the engine may outlive main().
  static auto* const kMutex = new std::mutex;
  static auto* const kOfTurn = new std::unordered_map<const void*, std::unique_ptr<Rounds>>;
  const std::lock_guard lock(*kMutex);
  std::unique_ptr<Rounds>& rounds = (*kOfTurn)[turn];
  if (rounds == nullptr) rounds = std::make_unique<Rounds>();
  return *rounds;
}

uint64_t Rounds::Push(GiveUp give_up) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({next_, std::move(give_up)});
  return next_++;
}

void Rounds::Run(uint64_t number, std::function<void()> start) {
  std::vector<Given> given;
  {
    const std::lock_guard lock(mutex_);
    given = TakeBefore(number);
    if (!waiting_.empty() && waiting_.front().number == number) waiting_.pop_front();
  }
  for (auto& [give_up, ended] : given) give_up(std::move(ended));
  giving_up_.Then(std::move(start));
}

void Rounds::Drop(uint64_t number) {
  std::vector<Given> given;
  {
    const std::lock_guard lock(mutex_);
    given = TakeBefore(number + 1);
  }
  for (auto& [give_up, ended] : given) give_up(std::move(ended));
}

std::vector<Rounds::Given> Rounds::TakeBefore(uint64_t end) {
  std::vector<Given> given;
  for (; !waiting_.empty() && waiting_.front().number < end; waiting_.pop_front()) {
    given.emplace_back(std::move(waiting_.front().give_up), giving_up_.One());
  }
  return given;
}

}  // namespace byteps::mxnet
