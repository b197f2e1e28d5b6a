#include "server/reducer/deliveries.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/crc32c.h"
#include "core/wire/message.h"
#include "server/reducer/served_session.h"

namespace byteps {
namespace {

constexpr char kNoRoom[] = "its result has not left yet: there was no room at the worker, or on the way to it";

}  // namespace

Result* Deliveries::Make(Block block, uint64_t bytes) {
  if (free_results_.empty()) {
    results_.push_back(std::make_unique<Result>());
    free_results_.push_back(results_.back().get());
  }
  Result* result = free_results_.back();
  free_results_.pop_back();
  result->block = std::move(block);
  result->bytes = bytes;
  result->users = 1;  // until Seal
  result->checksum.reset();
  return result;
}

void Deliveries::Release(Result* result) {
  if (--result->users > 0) return;
  result->block.Reset();
  free_results_.push_back(result);
  took_back_ = true;
}

void Deliveries::Add(PeerId peer, const wire::DataHeader& header, const wire::MemoryRef& memory, Result* result) {
  ++result->users;
  Delivery delivery{header, memory, result};
  Waiting& waiting = waiting_.try_emplace(peer, &memory_).first->second;
  if (scheduler_) {
    bps_task task{};
    task.struct_size = sizeof task;
    task.id = delivery.task = next_task_++;
    task.tensor = header.key;
    task.bytes = result->bytes;
    task.priority = header.priority;
    task.order = wire::NameId(header.key);  // names are numbered as they were declared
    task.part = header.part;
    task.peer = peer;
    task.contributors = header.rank;
    waiting.queued.emplace(task.id, delivery);
    scheduler_->Enqueue(now_, task);
  } else if (!waiting.ready.empty() || !Post(peer, &delivery)) {
    waiting.ready.push_back(delivery);
  }
}

bool Deliveries::Pump(Time now) {
  now_ = now;
  if (!scheduler_ || scheduler_->queued() == 0 || !status_.ok()) return false;
  budgets_.clear();
  for (const auto& [peer, waiting] : waiting_) {
    if (waiting.ready.empty() && !waiting.queued.empty()) budgets_.push_back({peer, 1, UINT64_MAX});
  }
  bool worked = false;
  while (!budgets_.empty()) {
    const absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler_->Next(now_, budgets_);
    if (!next.ok()) {
      status_ = next.status();
      return true;
    }
    if (!next->has_value()) break;
    worked = true;
    const PeerId peer = (*next)->peer;
    Waiting& waiting = waiting_.at(peer);
    Delivery delivery = waiting.queued.extract((*next)->id).mapped();
    if (Post(peer, &delivery)) continue;
    waiting.ready.push_back(delivery);
    std::erase_if(budgets_, [&](const bps_budget& budget) { return budget.peer == peer; });
  }
  return worked;
}

// Credit returns here: the bytes have left, or never will.
void Deliveries::EndTask(uint64_t task, int32_t code) {
  if (!scheduler_) return;
  if (code == BPS_OK) scheduler_->Sent(now_, task);
  scheduler_->Complete(now_, task, code);
}

void Deliveries::AddResult(const Round& round, Block block) {
  Result* result = block ? Make(std::move(block), round.bytes()) : nullptr;
  for (uint32_t turn = 0; turn < round.contributors(); ++turn) {
    const uint32_t index = (round.session()->first_served + turn) % round.contributors();
    const PeerId peer = WorkerOf(round, index).peer;
    if (round.broadcast() && index == round.first()) {
      AddInline(peer, round.header(), {});
    } else if (round.of(index).in_place) {
      AddInPlace(peer, round.header(), round.bytes());
    } else {
      Add(peer, round.header(), round.of(index).memory, result);
    }
  }
  if (result != nullptr) Release(result);
}

void Deliveries::AddInlineResult(const Round& round, std::span<const std::byte> bytes) {
  for (uint32_t index = 0; index < round.contributors(); ++index) {
    const bool has_it = round.broadcast() && index == round.first();
    AddInline(WorkerOf(round, index).peer, round.header(), has_it ? std::span<const std::byte>() : bytes);
  }
}

void Deliveries::AddInline(PeerId peer, const wire::DataHeader& header, std::span<const std::byte> payload) {
  wire::DataHeader result = header;
  result.way = payload.empty() ? wire::PayloadWay::kNone : wire::PayloadWay::kInline;
  result.payload_bytes = payload.size();
  if ((result.flags & wire::kFlagChecksum) != 0) result.checksum = Crc32c(payload);
  endpoint_->Send(peer, wire::RecordType::kResult, BytesOf(result), payload);
}

void Deliveries::AddInPlace(PeerId peer, const wire::DataHeader& header, uint64_t bytes) {
  wire::DataHeader result = header;
  result.way = wire::PayloadWay::kInPlace;
  result.payload_bytes = bytes;
  result.flags &= ~wire::kFlagChecksum;  // nothing travels
  endpoint_->Send(peer, wire::RecordType::kResult, BytesOf(result));
}

bool Deliveries::Post(PeerId peer, Delivery* delivery) {
  const bool direct = delivery->memory.key_size > 0;
  Result* result = delivery->result;
  RemoteSlot slot;
  if (!direct && !lenders_.contains(peer) && result->bytes <= endpoint_->MaxRecord() - sizeof(wire::DataHeader)) {
    AddInline(peer, delivery->header, {result->block.data(), result->bytes});
    EndTask(delivery->task, BPS_OK);
    Release(result);
    return true;
  }
  if (!direct) {
    const std::optional<RemoteSlot> taken = endpoint_->TakeSlot(peer);
    if (!taken) return false;
    slot = *taken;
    if (slot.bytes < result->bytes) {
      // A worker lends what its own partitions need. This one will miss its result, and its deadline says so.
      endpoint_->GiveBack(peer, slot);
      EndTask(delivery->task, BPS_OUT_OF_RANGE);
      Release(result);
      return true;
    }
  }
  uint64_t user;
  if (free_writes_.empty()) {
    user = writes_.size();
    writes_.emplace_back();
  } else {
    user = free_writes_.back();
    free_writes_.pop_back();
  }
  const uint32_t immediate = direct ? delivery->memory.immediate : slot.immediate;
  const bps_remote remote{delivery->memory.key, delivery->memory.key_size, delivery->memory.offset};
  wire::DataHeader header = delivery->header;
  header.way = wire::PayloadWay::kLanded;
  header.payload_bytes = result->bytes;
  header.immediate = immediate;
  if ((header.flags & wire::kFlagChecksum) != 0) {
    if (!result->checksum) result->checksum = Crc32c({result->block.data(), result->bytes});
    header.checksum = *result->checksum;
  }
  const Announcement record{wire::RecordType::kResult, BytesOf(header)};
  const bool accepted =
      direct ? endpoint_->Write(peer, result->block.local(), result->bytes, remote, immediate, user, record)
             : endpoint_->WriteSlot(peer, result->block.local(), result->bytes, slot, user, record);
  if (!accepted) {
    free_writes_.push_back(user);
    if (!direct) endpoint_->GiveBack(peer, slot);
    return false;
  }
  writes_[user] = {result, delivery->task};
  return true;
}

void Deliveries::OnRoom(PeerId peer) {
  // A lease comes right behind HELLO, and with it this call: before any result.
  if (endpoint_->FreeSlots(peer) > 0) lenders_.insert(peer);
  auto it = waiting_.find(peer);
  if (it == waiting_.end()) return;
  std::pmr::deque<Delivery>& ready = it->second.ready;
  while (!ready.empty() && Post(peer, &ready.front())) ready.pop_front();
}

void Deliveries::OnWritten(uint64_t user) {
  if (user >= writes_.size() || writes_[user].result == nullptr) return;
  const Write write = std::exchange(writes_[user], {});
  EndTask(write.task, BPS_OK);
  Release(write.result);
  free_writes_.push_back(user);
}

std::optional<std::string> Deliveries::Withdraw(PeerId peer, uint64_t key, uint64_t round, uint32_t part) {
  auto it = waiting_.find(peer);
  if (it == waiting_.end()) return std::nullopt;
  const auto wanted = [&](const Delivery& delivery) {
    return delivery.header.key == key && delivery.header.round == round && delivery.header.part == part;
  };
  Waiting& waiting = it->second;
  const auto ready = std::find_if(waiting.ready.begin(), waiting.ready.end(), wanted);
  if (ready != waiting.ready.end()) {
    EndTask(ready->task, BPS_CANCELLED);
    Release(ready->result);
    waiting.ready.erase(ready);
    return kNoRoom;
  }
  const auto queued = std::find_if(waiting.queued.begin(), waiting.queued.end(),
                                   [&](const auto& entry) { return wanted(entry.second); });
  if (queued == waiting.queued.end()) return std::nullopt;
  scheduler_->Withdraw(queued->first);
  Release(queued->second.result);
  waiting.queued.erase(queued);
  // (Behind one that has no room the scheduler is not asked.)
  if (!waiting.ready.empty()) return kNoRoom;
  return absl::StrCat("scheduler \"", scheduler_->name(), "\" has not given its result out");
}

void Deliveries::Drop(PeerId peer) {
  lenders_.erase(peer);
  auto it = waiting_.find(peer);
  if (it == waiting_.end()) return;
  for (const Delivery& delivery : it->second.ready) {
    EndTask(delivery.task, BPS_UNAVAILABLE);
    Release(delivery.result);
  }
  for (const auto& [task, delivery] : it->second.queued) {
    scheduler_->Withdraw(task);
    Release(delivery.result);
  }
  waiting_.erase(it);
}

}  // namespace byteps
