#include "tests/server/reducer/scripted_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/reduce/dtype.h"
#include "core/wire/message.h"
#include "core/wire/push_head.h"
#include "gtest/gtest.h"

namespace byteps {

ScriptedWorker::ScriptedWorker(Transport transport, const ScriptedWorkerOptions& options) : options_(options) {
  address_ = *transport.Address();
  EndpointHandler* handler = this;
  endpoint_ = std::make_unique<Endpoint>(std::move(transport), options.endpoint, handler, &log_);
  if (options.lent_slots == 0) return;
  window_.resize(options.slot_bytes * options.lent_slots);
  EXPECT_TRUE(endpoint_->transport().Reg(window_.data(), window_.size(), &window_region_).ok());
  first_slot_ = *table_.TakeRange(options.lent_slots);
}

ScriptedWorker::~ScriptedWorker() {
  for (const auto& pushed : all_) EndExposure(pushed.get());
  if (window_region_ != nullptr) endpoint_->transport().Unreg(window_region_);
}

control::Member ScriptedWorker::member() const {
  control::Member member;
  member.set_member(options_.member);
  member.set_role(control::WORKER);
  member.set_rank(static_cast<int32_t>(options_.rank));
  member.set_pid(1000 + options_.member);
  member.mutable_host()->set_name(options_.node);
  member.mutable_host()->set_address("10.0.0." + std::to_string(options_.member));
  control::Lane* lane = member.add_lanes();
  lane->set_transport(options_.transport_name);
  lane->set_address(address_);
  return member;
}

absl::Status ScriptedWorker::Join(Time now, const control::Epoch& epoch, uint32_t lane) {
  const control::Member& server = epoch.servers(0);
  server_ = 1 + static_cast<uint32_t>(server.rank()) * 64 + lane;
  PeerSpec spec;
  spec.session = epoch.session_id();
  spec.epoch = epoch.epoch();
  spec.session_nonce = epoch.nonce();
  spec.own_member = options_.member;
  spec.member = server.member();
  spec.lane = lane;
  spec.address = server.lanes(static_cast<int>(lane)).address();
  spec.description = "server 0";
  spec.local_id = options_.member;
  spec.id = server_;
  return endpoint_->AddPeer(now, spec);
}

void ScriptedWorker::OnReady(PeerId) {
  ready_ = true;
  if (options_.lent_slots > 0) {
    EXPECT_TRUE(
        endpoint_->Lend(server_, window_region_, 0, options_.slot_bytes, first_slot_, options_.lent_slots).ok());
  }
}

void ScriptedWorker::Poll(Time now) {
  endpoint_->Poll(now);
  if (!hold_slots) TakeHeld();
  while (ready_ && !down && !queue_.empty() && TryPush(queue_.front())) queue_.pop_front();
}

wire::DataHeader ScriptedWorker::HeaderOf(const Ask& ask) const {
  wire::DataHeader header{};
  header.key = ask.key;
  header.fingerprint = ask.fingerprint;
  header.round = ask.round;
  header.elements = ask.elements;
  header.payload_bytes = ask.input.size();
  header.part = ask.part;
  header.parts = ask.parts;
  header.rank = options_.rank;
  header.dtype = ask.dtype;
  header.wire_dtype = ask.dtype;
  header.root = ask.root;
  header.timeout_ms = ask.timeout_ms;
  header.operation = ask.operation;
  header.reduction = static_cast<uint8_t>(ask.reduction);
  header.priority = ask.priority;
  header.rate = ask.rate;
  if (ask.checksum) {
    header.flags |= wire::kFlagChecksum;
    header.checksum = *ask.checksum;
  }
  header.way = ask.input.empty()          ? wire::PayloadWay::kNone
               : ask.in_place && reached_ ? wire::PayloadWay::kInPlace
                                          : (ask.in_record ? wire::PayloadWay::kInline : wire::PayloadWay::kLanded);
  return header;
}

Bytes ScriptedWorker::HeadOf(const Ask& ask, const wire::DataHeader& header) {
  const std::span<const std::byte> fixed = BytesOf(header);
  if (!ask.shape.has_value()) return {fixed.begin(), fixed.end()};
  const PushHead head(header, *ask.shape, SIZE_MAX);
  return {head.bytes().begin(), head.bytes().end()};
}

void ScriptedWorker::Push(const Ask& ask) {
  all_.push_back(std::make_unique<Pushed>());
  Pushed* pushed = all_.back().get();
  pushed->ask = ask;
  by_name_[{ask.key, ask.round, ask.part}] = pushed;
  queue_.push_back(pushed);
}

bool ScriptedWorker::TryPush(Pushed* pushed) {
  const Ask& ask = pushed->ask;
  wire::DataHeader header = HeaderOf(ask);
  if (header.way == wire::PayloadWay::kLanded && endpoint_->FreeSlots(server_) == 0) return false;
  if (ask.place == ResultPlace::kDirect && ask.elements > 0) {
    if (!pushed->immediate) {
      pushed->immediate = table_.Take();
      if (!pushed->immediate) return false;
      pushed->output.assign(ask.elements * DtypeSize(ask.dtype), std::byte{0xee});
      EXPECT_TRUE(endpoint_->transport().Reg(pushed->output.data(), pushed->output.size(), &pushed->region).ok());
    }
    if (ask.over_input) std::copy(ask.input.begin(), ask.input.end(), pushed->output.begin());
    header.memory.immediate = *pushed->immediate;
    header.memory.key_size = static_cast<uint16_t>(endpoint_->caps().key_size);
    EXPECT_EQ(endpoint_->transport().ExportKey(pushed->region, server_, header.memory.key), BPS_OK);
  }
  if (header.way == wire::PayloadWay::kInPlace) {
    wire::MemoryRef source = header.memory;
    if (!ask.over_input) {
      if (pushed->source_region == nullptr) {
        pushed->source = ask.input;
        EXPECT_TRUE(
            endpoint_->transport().Reg(pushed->source.data(), pushed->source.size(), &pushed->source_region).ok());
      }
      source.key_size = static_cast<uint16_t>(endpoint_->caps().key_size);
      EXPECT_EQ(endpoint_->transport().ExportKey(pushed->source_region, server_, source.key), BPS_OK);
    }
    endpoint_->Send(server_, wire::RecordType::kPush, HeadOf(ask, header), BytesOf(source));
  } else if (header.way == wire::PayloadWay::kLanded) {
    const RemoteSlot slot = *endpoint_->TakeSlot(server_);
    EXPECT_GE(slot.bytes, ask.input.size());
    if (!endpoint_->WriteSlot(server_, {nullptr, const_cast<std::byte*>(ask.input.data())}, ask.input.size(), slot,
                              0)) {
      endpoint_->GiveBack(server_, slot);
      return false;
    }
    header.immediate = slot.immediate;
    endpoint_->Send(server_, wire::RecordType::kPush, HeadOf(ask, header));
  } else {
    endpoint_->Send(server_, wire::RecordType::kPush, HeadOf(ask, header), ask.input);
  }
  return true;
}

void ScriptedWorker::Cancel(const Ask& ask, int32_t code, const std::string& text) {
  if (!by_name_.contains({ask.key, ask.round, ask.part})) {
    all_.push_back(std::make_unique<Pushed>());
    all_.back()->ask = ask;
    by_name_[{ask.key, ask.round, ask.part}] = all_.back().get();
  }
  wire::RoundBody body{};
  body.key = ask.key;
  body.fingerprint = ask.fingerprint;
  body.round = ask.round;
  body.part = ask.part;
  body.rank = options_.rank;
  body.code = code;
  body.text = static_cast<uint32_t>(text.size());
  SendRaw(wire::RecordType::kCancel, BytesOf(body), std::as_bytes(std::span(text.data(), text.size())));
}

void ScriptedWorker::SendRaw(wire::RecordType type, std::span<const std::byte> body,
                             std::span<const std::byte> payload) {
  endpoint_->Send(server_, type, body, payload);
}

const Answer* ScriptedWorker::answer(const Ask& ask) const {
  auto it = by_name_.find({ask.key, ask.round, ask.part});
  return it == by_name_.end() ? nullptr : &it->second->answer;
}

void ScriptedWorker::OnRecord(PeerId, wire::RecordType type, std::span<const std::byte> body) {
  if (type == wire::RecordType::kResult) {
    wire::DataHeader header;
    ASSERT_TRUE(ReadStruct(body, &header));
    auto it = by_name_.find({header.key, header.round, header.part});
    if (takes_anything && it == by_name_.end()) return;
    ASSERT_NE(it, by_name_.end()) << "a RESULT that nobody asked for";
    Pushed* pushed = it->second;
    EXPECT_EQ(header.elements, pushed->ask.elements);
    EXPECT_EQ(header.fingerprint, pushed->ask.fingerprint);
    pushed->answer.rate = header.rate;
    if ((header.flags & wire::kFlagChecksum) != 0) pushed->answer.checksum = header.checksum;
    if (header.way == wire::PayloadWay::kLanded) {
      const auto cookie = static_cast<uint64_t>(
          std::find_if(all_.begin(), all_.end(), [&](const auto& p) { return p.get() == pushed; }) - all_.begin());
      EXPECT_EQ(header.payload_bytes, pushed->ask.elements * DtypeSize(pushed->ask.dtype));
      ASSERT_TRUE(table_.Expects(header.immediate));
      if (table_.Announce(header.immediate, cookie)) Landed(header.immediate, cookie);
      return;
    }
    order_.push_back(header.key);
    if (header.way == wire::PayloadWay::kInPlace) {
      EXPECT_TRUE(pushed->ask.in_place) << "nobody has asked for the result in place";
      pushed->answer.result = pushed->output;
    } else {
      const auto payload = body.subspan(sizeof header, header.payload_bytes);
      pushed->answer.result.assign(payload.begin(), payload.end());
    }
    ++pushed->answer.results;
    EndExposure(pushed);
    return;
  }
  if (type == wire::RecordType::kReach) {
    wire::ReachBody reach;
    ASSERT_TRUE(ReadStruct(body, &reach));
    reached_ = reach.reached != 0;
    return;
  }
  wire::RoundBody round;
  ASSERT_TRUE(ReadStruct(body, &round));
  auto it = by_name_.find({round.key, round.round, round.part});
  if (it == by_name_.end()) return;
  Pushed* pushed = it->second;
  if (type == wire::RecordType::kSendAgain) {
    EXPECT_EQ(round.rank, options_.rank);
    ++pushed->answer.again;
    if (!ignore_again) queue_.push_front(pushed);
    return;
  }
  if (type == wire::RecordType::kStalled) {
    ++pushed->answer.stalls;
    pushed->answer.stall.assign(reinterpret_cast<const char*>(body.data() + sizeof round), round.text);
    return;
  }
  ASSERT_EQ(type, wire::RecordType::kError);
  ++pushed->answer.errors;
  pushed->answer.code = round.code;
  pushed->answer.flags = round.flags;
  pushed->answer.text.assign(reinterpret_cast<const char*>(body.data() + sizeof round), round.text);
  EndExposure(pushed);
}

void ScriptedWorker::OnLanded(uint32_t immediate) {
  if (auto cookie = table_.Land(immediate)) Landed(immediate, *cookie);
}

void ScriptedWorker::Landed(uint32_t immediate, uint64_t cookie) {
  Pushed* pushed = all_[cookie].get();
  if (pushed->immediate == immediate) {
    pushed->answer.result = pushed->output;
    ++pushed->answer.results;
    EndExposure(pushed);
    return;
  }
  held_.emplace_back(immediate, cookie);
}

void ScriptedWorker::TakeHeld() {
  for (const auto& [immediate, cookie] : std::exchange(held_, {})) {
    Pushed* pushed = all_[cookie].get();
    const std::byte* slot = window_.data() + (wire::ImmediateSlot(immediate) - first_slot_) * options_.slot_bytes;
    pushed->answer.result.assign(slot, slot + pushed->ask.elements * DtypeSize(pushed->ask.dtype));
    ++pushed->answer.results;
    endpoint_->Return(server_, table_.Renew(immediate));
  }
}

Bytes ScriptedWorker::TakeBack(const Ask& ask) {
  Pushed* pushed = by_name_.at({ask.key, ask.round, ask.part});
  EndExposure(pushed);
  return pushed->output;
}

void ScriptedWorker::EndExposure(Pushed* pushed) {
  if (pushed->source_region != nullptr) endpoint_->transport().Unreg(std::exchange(pushed->source_region, nullptr));
  if (!pushed->immediate) return;
  table_.Free(*pushed->immediate);
  endpoint_->transport().Unreg(pushed->region);
  pushed->immediate.reset();
}

}  // namespace byteps
