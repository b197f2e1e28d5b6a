#include "frameworks/mxnet/native/rounds.h"

#include <unordered_map>
#include <utility>

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

uint64_t Rounds::Push(std::function<void()> give_up) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({next_, std::move(give_up)});
  return next_++;
}

void Rounds::Run(uint64_t number) {
  const std::lock_guard lock(mutex_);
  GiveUpBefore(number);
  if (!waiting_.empty() && waiting_.front().number == number) waiting_.pop_front();
}

void Rounds::Drop(uint64_t number) {
  const std::lock_guard lock(mutex_);
  GiveUpBefore(number + 1);
}

void Rounds::GiveUpBefore(uint64_t end) {
  while (!waiting_.empty() && waiting_.front().number < end) {
    waiting_.front().give_up();
    waiting_.pop_front();
  }
}

}  // namespace byteps::mxnet
