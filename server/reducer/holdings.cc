#include "server/reducer/holdings.h"

#include <cstring>
#include <utility>
#include <vector>

#include "server/reducer/served_session.h"

namespace byteps {
namespace {

constexpr size_t kWorthWaiting = 65536;  // bytes: to copy less takes no time

}  // namespace

const std::byte* Holdings::PayloadOf(const Round& round, uint32_t index) const {
  const Contribution& contribution = round.of(index);
  return contribution.block ? contribution.block.data() : windows_->Memory(contribution.immediate).data();
}

void Holdings::Clear(Round* round, uint32_t index, ContributionState state) {
  Contribution& contribution = round->of(index);
  switch (contribution.state) {
    case ContributionState::kComing:
    case ContributionState::kInSlot:
      windows_->Abandon(contribution.immediate);
      break;
    case ContributionState::kParked:
      contribution.block.Reset();
      break;
    default:
      break;
  }
  round->SetState(index, state);
}

void Holdings::Fold(Round* round, uint32_t index, const std::byte* payload) {
  round->accumulator().Add(payload != nullptr ? payload : PayloadOf(*round, index));
  Clear(round, index, ContributionState::kFolded);
}

void Holdings::FoldPrefix(Round* round) {
  while (round->next() < round->last() && round->of(round->next()).waiting()) Fold(round, round->next(), nullptr);
}

void Holdings::Store(Time now, Round* round, uint32_t index, const std::byte* payload) {
  if (payload == nullptr) {
    // A worker with a single slot would come to a halt with each contribution; copying a small one costs less than a
    // halt.
    const bool last = windows_->Last(WorkerOf(*round, index).peer);
    if (!last || (round->bytes() >= kWorthWaiting && round->session()->slots > 1)) {
      windows_->Hold(now, round->of(index).immediate);
      round->SetState(index, ContributionState::kInSlot);
      return;
    }
  }
  MoveOut(round, index, payload);
}

bool Holdings::FreeStuckSlots(Time now) {
  const std::vector<Windows::StuckUse>& stuck = windows_->Stuck(now);
  for (const auto& [use, none_left] : stuck) {
    // Without memory what is moved out is lost, and has to be sent again.
    if (!none_left && pool_->short_of_memory()) continue;
    // Moving one may have taken others with it.
    if (use.round != nullptr && use.round->of(use.rank).state == ContributionState::kInSlot) {
      MoveOut(use.round, use.rank, nullptr);
    }
  }
  return !stuck.empty();
}

void Holdings::MoveOut(Round* round, uint32_t index, const std::byte* payload) {
  Contribution& contribution = round->of(index);
  if (!round->has_accumulator() && pool_->short_of_memory()) {
    // A prefix that takes more memory than its fold is folded.
    uint32_t count = 0;
    for (uint32_t next = round->first(); next < round->last(); ++next, ++count) {
      if (next != index && !round->of(next).waiting()) break;
    }
    if (count > 1 && index < round->first() + count && count * round->bytes() > round->accumulator_bytes()) {
      if (Block memory = pool_->Take(round->accumulator_bytes())) round->StartAccumulator(std::move(memory));
    }
  }
  if (round->has_accumulator()) {
    FoldPrefix(round);
    if (contribution.state == ContributionState::kFolded) return;
    if (round->next() == index) {
      Fold(round, index, payload);
      FoldPrefix(round);
      return;
    }
  }
  Block block = pool_->Take(round->bytes());
  if (!block) {
    ++dropped_;
    Clear(round, index, ContributionState::kDropped);
    return;
  }
  ++parked_;
  std::memcpy(block.data(), payload != nullptr ? payload : PayloadOf(*round, index), round->bytes());
  Clear(round, index, ContributionState::kParked);
  contribution.block = std::move(block);
}

}  // namespace byteps
