#include "core/worker/servers/push_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/wire/peer_number.h"

namespace byteps {
namespace {

// See "Two rows".
constexpr size_t kRowsAhead = 2;
constexpr size_t kRowsAheadAtHome = 1;
constexpr Time kRowsPatience = 100 * kMillisecond;

}  // namespace

PushQueue::PushQueue(Scheduler scheduler, ServerLanes* lanes, const Transfers* transfers, PushSender* sender,
                     uint64_t outbox_bytes, PushQueueSink* sink)
    : scheduler_(std::move(scheduler)),
      lanes_(lanes),
      transfers_(transfers),
      sender_(sender),
      outbox_bytes_(outbox_bytes),
      sink_(sink) {}

void PushQueue::Join(uint64_t slot_bytes, uint64_t inline_bytes, bool at_home) {
  slot_bytes_ = slot_bytes;
  inline_bytes_ = inline_bytes;
  rows_ahead_ = at_home ? kRowsAheadAtHome : kRowsAhead;
  std::vector<uint32_t> ids;
  for (const ServerLane& lane : *lanes_) {
    budgets_.push_back({lane.id, 0, 0});
    ids.push_back(lane.id);
  }
  scheduler_.Peers(ids);
}

void PushQueue::Enqueue(Time now, Partition* partition, uint32_t turn) {
  const Operation& operation = *partition->transfer->operation;
  const Submission& asked = operation.asked;
  partition->Move(PartitionState::kQueued);
  partition->task = next_task_++;
  partition->sent = false;
  bps_task task{};
  task.struct_size = sizeof task;
  task.id = partition->task;
  task.tensor = asked.tensor->cut->key();
  task.bytes = partition->source.bytes;
  task.priority = asked.priority;
  task.order = asked.tensor->name().order();
  task.part = turn;
  task.peer = partition->peer;
  task.round = static_cast<uint32_t>(operation.round + 1);
  tasks_[partition->task] = partition;
  ++queued_;
  wake_ = true;
  operation.NotePart(TimelineEvent::kQueued, now, partition->part, partition->source.bytes,
                     wire::ServerOf(partition->peer));
  scheduler_.Enqueue(now, task);
}

// What the lane can take now: anything while there is a slot, or if none is ever needed, small payloads otherwise, and
// nothing while its outbox is full or something chosen before still waits. (Where only some tensors need slots, the
// others wait with them: the holder of all slots gives one back soon.)
void PushQueue::UpdateBudget(Time now, size_t index) {
  ServerLane& lane = (*lanes_)[index];
  bps_budget& budget = budgets_[index];
  Endpoint& endpoint = lane.carrier->endpoint();
  lane.full = endpoint.Queued(lane.id) >= outbox_bytes_;
  budget.tasks = lane.ready && lane.held.empty() && !lane.full ? 1 : 0;
  const bool any = lane.carrier->copies(lane.id) || endpoint.FreeSlots(lane.id) > 0;
  budget.bytes = any ? slot_bytes_ : inline_bytes_;
  const size_t taken = endpoint.TakenSlots(lane.id);
  if (taken < lane.taken_slots) slot_came_ = now;
  taken_slots_ += taken - lane.taken_slots;
  lane.taken_slots = taken;
}

// See "Two rows".
bool PushQueue::FarEnough(Time now) const {
  if (taken_slots_ < rows_ahead_ * lanes_->size()) return false;
  const Transfer* transfer = transfers_->only();
  // What comes from a stage before comes in an order of its own.
  return transfer != nullptr && transfer->alone && transfer->carried == transfer->partitions.size() &&
         now < slot_came_ + kRowsPatience;
}

bool PushQueue::RetryHeld(Time now, ServerLane* lane) {
  bool worked = false;
  while (!lane->held.empty()) {
    Partition* partition = lane->held.front();
    absl::Status error;
    const PushSender::Outcome outcome = sender_->Post(now, scheduler_.Rate(), partition, &error);
    if (outcome == PushSender::Outcome::kLater) break;
    if (outcome == PushSender::Outcome::kFailed) {
      sink_->OnPostFailed(partition, error);  // takes it off the list
    } else {
      lane->held.pop_front();
      --held_;
    }
    worked = true;
  }
  return worked;
}

void PushQueue::CheckTimers(Time now) {
  if (queued_ > 0 && !wake_ && (scheduler_.WakeAt(now) <= now || now >= held_back_until_)) wake_ = true;
}

bool PushQueue::Run(Time now) {
  if (!wake_ || stopped_) return false;
  wake_ = false;
  if (queued_ == 0 && held_ == 0) return false;
  bool worked = false;
  for (size_t i = 0; i < lanes_->size(); ++i) {
    worked |= RetryHeld(now, &(*lanes_)[i]);
    UpdateBudget(now, i);
  }
  held_back_until_ = kNever;
  while (queued_ > 0 && !stopped_) {
    if (FarEnough(now)) {
      held_back_until_ = slot_came_ + kRowsPatience;
      break;
    }
    absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler_.Next(now, budgets_);
    if (!next.ok()) {
      sink_->OnSchedulerFailed(next.status());
      return worked;
    }
    if (!next->has_value()) break;
    worked = true;
    --queued_;
    Partition* partition = tasks_.at((*next)->id);
    const size_t index = lanes_->IndexOf(partition->peer);
    absl::Status error;
    const PushSender::Outcome outcome = sender_->Post(now, scheduler_.Rate(), partition, &error);
    if (outcome != PushSender::Outcome::kPosted) {
      partition->Move(PartitionState::kHeld);
      (*lanes_)[index].held.push_back(partition);
      ++held_;
      if (outcome == PushSender::Outcome::kFailed) sink_->OnPostFailed(partition, error);
    }
    UpdateBudget(now, index);
  }
  return worked;
}

void PushQueue::OnSent(Time now, Partition* partition) {
  if (!partition->sent) {
    partition->sent = true;
    scheduler_.Sent(now, partition->task);
  }
  if (partition->state() == PartitionState::kPosted) {
    partition->Move(PartitionState::kPushed);
    partition->transfer->operation->NotePart(TimelineEvent::kPushed, now, partition->part);
  }
  wake_ = true;
}

bool PushQueue::SettleOutboxes(Time now) {
  bool worked = false;
  for (ServerLane& lane : *lanes_) {
    if (lane.leaving.empty() && !lane.full) continue;
    const size_t waiting = lane.carrier->endpoint().Queued(lane.id);
    // What has filled it may have been CANCELs alone, for which no other worker waits.
    if (lane.full && waiting < outbox_bytes_) {
      lane.full = false;
      wake_ = true;
      worked = true;
    }
    while (!lane.leaving.empty() && lane.queued_bytes - lane.leaving.front().first >= waiting) {
      const auto task = tasks_.find(lane.leaving.front().second);
      lane.leaving.pop_front();
      worked = true;
      if (task != tasks_.end()) OnSent(now, task->second);
    }
  }
  return worked;
}

void PushQueue::End(Time now, Partition* partition, int32_t code) {
  if (partition->task == 0) return;
  switch (partition->state()) {
    case PartitionState::kQueued:
      scheduler_.Withdraw(partition->task);
      --queued_;
      break;
    case PartitionState::kHeld:
      std::erase(lanes_->Find(partition->peer)->held, partition);
      --held_;
      [[fallthrough]];
    default:
      scheduler_.Complete(now, partition->task, code);
  }
  tasks_.erase(partition->task);
  partition->task = 0;
}

void PushQueue::OnAgreedRate(Time now, uint32_t rate) {
  if (rate == 0 || rate == agreed_rate_) return;
  agreed_rate_ = rate;
  scheduler_.Agreed(now, rate);
  wake_ = true;
}

Time PushQueue::NextTimer(Time now) const {
  if (wake_ && (queued_ > 0 || held_ > 0)) return now;
  return queued_ > 0 ? std::min(scheduler_.WakeAt(now), held_back_until_) : kNever;
}

void PushQueue::Stop() {
  stopped_ = true;
  queued_ = held_ = 0;
}

}  // namespace byteps
