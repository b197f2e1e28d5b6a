#include "server/deliveries.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/message.h"

namespace byteps {

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
  std::deque<Delivery>& waiting = waiting_[peer];
  if (!waiting.empty() || !Post(peer, &delivery)) waiting.push_back(delivery);
}

void Deliveries::AddInline(PeerId peer, const wire::DataHeader& header, std::span<const std::byte> payload) {
  wire::DataHeader result = header;
  result.way = payload.empty() ? wire::PayloadWay::kNone : wire::PayloadWay::kInline;
  result.payload_bytes = payload.size();
  endpoint_->Send(peer, wire::RecordType::kResult, BytesOf(result), payload);
}

bool Deliveries::Post(PeerId peer, Delivery* delivery) {
  const bool direct = delivery->memory.key_size > 0;
  Result* result = delivery->result;
  RemoteSlot slot;
  if (!direct && !lenders_.contains(peer) && result->bytes <= endpoint_->MaxRecord() - sizeof(wire::DataHeader)) {
    AddInline(peer, delivery->header, {result->block.data(), result->bytes});
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
      Release(result);
      return true;
    }
  }
  uint64_t user;
  if (free_writes_.empty()) {
    user = writes_.size();
    writes_.push_back(nullptr);
  } else {
    user = free_writes_.back();
    free_writes_.pop_back();
  }
  const uint32_t immediate = direct ? delivery->memory.immediate : slot.immediate;
  const bps_remote remote{delivery->memory.key, delivery->memory.key_size, delivery->memory.offset};
  const bool accepted = direct ? endpoint_->Write(peer, result->block.local(), result->bytes, remote, immediate, user)
                               : endpoint_->WriteSlot(peer, result->block.local(), result->bytes, slot, user);
  if (!accepted) {
    free_writes_.push_back(user);
    if (!direct) endpoint_->GiveBack(peer, slot);
    return false;
  }
  writes_[user] = result;
  wire::DataHeader header = delivery->header;
  header.way = wire::PayloadWay::kLanded;
  header.payload_bytes = result->bytes;
  header.immediate = immediate;
  endpoint_->Send(peer, wire::RecordType::kResult, BytesOf(header));
  return true;
}

void Deliveries::OnRoom(PeerId peer) {
  // A lease comes right behind HELLO, and with it this call: before any result.
  if (endpoint_->FreeSlots(peer) > 0) lenders_.insert(peer);
  auto it = waiting_.find(peer);
  if (it == waiting_.end()) return;
  while (!it->second.empty() && Post(peer, &it->second.front())) it->second.pop_front();
}

void Deliveries::OnWritten(uint64_t user) {
  if (user >= writes_.size() || writes_[user] == nullptr) return;
  Release(std::exchange(writes_[user], nullptr));
  free_writes_.push_back(user);
}

bool Deliveries::Withdraw(PeerId peer, uint64_t key, uint64_t round, uint32_t part) {
  auto it = waiting_.find(peer);
  if (it == waiting_.end()) return false;
  auto found = std::find_if(it->second.begin(), it->second.end(), [&](const Delivery& delivery) {
    return delivery.header.key == key && delivery.header.round == round && delivery.header.part == part;
  });
  if (found == it->second.end()) return false;
  Release(found->result);
  it->second.erase(found);
  return true;
}

void Deliveries::Drop(PeerId peer) {
  lenders_.erase(peer);
  auto it = waiting_.find(peer);
  if (it == waiting_.end()) return;
  for (Delivery& delivery : it->second) Release(delivery.result);
  waiting_.erase(it);
}

}  // namespace byteps
