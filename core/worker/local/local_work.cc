#include "core/worker/local/local_work.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "abi/byteps.h"
#include "core/base/byte_buffer.h"
#include "core/reduce/reduce.h"

namespace byteps {
namespace {

// The scheduler's only peer: this member's own hands.
constexpr uint32_t kOwnHands = 1;

}  // namespace

LocalWork::LocalWork(Scheduler scheduler, LocalWorkSink* sink) : scheduler_(std::move(scheduler)), sink_(sink) {}

void LocalWork::Join(Transport* transport, std::vector<uint32_t> group_sizes, size_t members, size_t own) {
  fold_ = std::make_unique<BlockFold>(transport, members);
  group_sizes_ = std::move(group_sizes);
  own_ = own;
  const uint32_t hands[] = {kOwnHands};
  scheduler_.Peers(hands);
}

void LocalWork::Add(Time now, LocalRound* round, const LocalPiece& piece) {
  const Submission& asked = round->operation->asked;
  round->piece = piece;
  round->task = next_task_++;
  bps_task task{};
  task.struct_size = sizeof task;
  task.id = round->task;
  task.tensor = asked.tensor->cut->key();
  task.bytes = piece.end - piece.next;
  task.priority = asked.priority;
  task.order = asked.tensor->name().order();
  task.peer = kOwnHands;
  tasks_[round->task] = round;
  ++queued_;
  pick_ = true;
  scheduler_.Enqueue(now, task);
}

void LocalWork::Withdraw(Time now, LocalRound* round) {
  if (round->task == 0) return;
  if (current_ == round) return EndTask(now, BPS_ABORTED);
  scheduler_.Withdraw(round->task);
  tasks_.erase(round->task);
  round->task = 0;
  --queued_;
}

std::optional<size_t> LocalWork::FoldSmall(LocalRound* round, bool partial) {
  const uint64_t bytes = round->bytes();
  if (bytes == 0) return std::nullopt;
  inputs_.resize(round->reports.size());
  for (size_t index = 0; index < inputs_.size(); ++index) {
    const ByteBuffer& payload = round->reports[index].payload;
    if (index != own_ && payload.size() != bytes) return index;
    inputs_[index] = index == own_ ? round->areas.source.address : payload.data();
  }
  const int32_t reduction = round->operation->asked.reduction;
  Reduce(partial ? PartialReduction(round->dtype(), reduction) : Reduction{round->dtype(), reduction}, inputs_,
         group_sizes_, round->areas.target.address, round->elements());
  return std::nullopt;
}

bool LocalWork::CopySmall(LocalRound* round, size_t index) {
  const Payload& target = round->areas.target;
  const ByteBuffer& payload = round->reports[index].payload;
  if (payload.size() != target.bytes) return false;
  if (!payload.empty()) std::memcpy(target.address, payload.data(), payload.size());
  return true;
}

bool LocalWork::Pick(Time now) {
  pick_ = false;
  if (queued_ == 0) return false;
  const bps_budget budget[] = {{kOwnHands, 1, UINT64_MAX}};
  absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler_.Next(now, budget);
  if (!next.ok()) {
    sink_->OnWorkFatal(next.status());
    return false;
  }
  if (!next->has_value()) return false;
  --queued_;
  current_ = tasks_.at((*next)->id);
  return true;
}

// Both the current piece and what is waited for change under it.
bool LocalWork::Run(Time now) {
  if (halted_) return false;
  if (current_ == nullptr && !Pick(now)) return false;
  LocalRound* round = current_;
  const uint64_t bytes = std::min<uint64_t>(BlockFold::kBlockBytes, round->piece.end - round->piece.next);
  size_t culprit = 0;
  const int32_t code = Block(round, bytes, &culprit);
  if (code != BPS_OK) {
    sink_->OnPieceFailed(round, code, culprit);
    return true;
  }
  round->piece.next += bytes;
  if (round->piece.next != round->piece.end) return true;
  EndTask(now, BPS_OK);
  sink_->OnPiece(round);
  return true;
}

int32_t LocalWork::Block(LocalRound* round, uint64_t bytes, size_t* culprit) {
  const Submission& asked = round->operation->asked;
  const uint64_t offset = round->piece.next;
  const uint32_t dtype = round->dtype();
  std::byte* const target = round->areas.target.address + offset;
  switch (round->piece.kind) {
    case LocalPiece::Kind::kReduce:
      return fold_->Fold({dtype, asked.reduction}, group_sizes_, round->memory, own_, offset, bytes, round->stores,
                         culprit);
    case LocalPiece::Kind::kFold:
      return fold_->Gather(PartialReduction(dtype, asked.reduction), group_sizes_, round->memory, offset, bytes, target,
                           culprit);
    case LocalPiece::Kind::kSpread:
      return fold_->Spread(round->memory, own_, target, offset, bytes, culprit);
    case LocalPiece::Kind::kShow:
      std::memcpy(round->staging.base + offset, round->areas.source.address + offset, bytes);
      return BPS_OK;
    case LocalPiece::Kind::kTake:
      std::memcpy(target, round->staging.base + offset, bytes);
      return BPS_OK;
    case LocalPiece::Kind::kFetch:
      break;
  }
  *culprit = round->root;
  return fold_->Read(round->memory[round->root].input, target, offset, bytes);
}

// The current piece is over.
void LocalWork::EndTask(Time now, int32_t code) {
  LocalRound* round = std::exchange(current_, nullptr);
  pick_ = true;
  tasks_.erase(round->task);
  if (code == BPS_OK) scheduler_.Sent(now, round->task);
  scheduler_.Complete(now, round->task, code);
  round->task = 0;
}

Time LocalWork::NextTimer(Time now) const {
  if (halted_) return kNever;
  if (current_ != nullptr || (pick_ && queued_ > 0)) return now;
  return queued_ > 0 ? scheduler_.WakeAt(now) : kNever;
}

}  // namespace byteps
