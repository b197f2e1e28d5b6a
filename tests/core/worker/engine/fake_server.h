// fake_server.h - a scripted server for tests of the worker's side: one lane that sums float32, and does worse on
// demand.
//
//     FakeServer server(&fabric, "server0", {.workers = 2});
//     server.Add(worker_member, address);           // for each worker
//     while (...) server.Poll(fabric.now());
//
// It follows docs/protocol.md as far as a worker can see. What it is told to do otherwise is in FakeServerScript.
#ifndef BYTEPS_TESTS_CORE_WORKER_ENGINE_FAKE_SERVER_H_
#define BYTEPS_TESTS_CORE_WORKER_ENGINE_FAKE_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/aligned_memory.h"
#include "core/base/crc32c.h"
#include "core/base/log.h"
#include "core/link/endpoint.h"
#include "core/plugin/region.h"
#include "core/wire/landing_table.h"
#include "core/wire/message.h"
#include "core/wire/push_head.h"
#include "core/wire/wire.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

struct FakeServerScript {
  uint32_t workers = 1;
  uint32_t slots = 2;  // lent to each worker
  uint64_t slot_bytes = 4096;
  uint64_t inline_bytes = 64;              // results up to here are inline
  int send_again = 0;                      // so many contributions are dropped and asked for again
  bool silent = false;                     // takes everything, answers nothing
  bool forgetful_of_slots = false;         // never returns a slot
  uint32_t rate = 0;                       // that results tell
  std::vector<uint32_t>* rates = nullptr;  // where to write what was told with each contribution
  int32_t error = 0;                       // answers every round with this code instead
  std::string error_text;
  uint32_t error_flags = 0;
  bool error_to_cancel = true;  // confirms CANCEL by ERROR
  uint32_t altered = 0;         // added to the checksums of results, where the worker has asked for some
  int checked = 0;              // contributions that had one, and the right one
};

class FakeServer : private EndpointHandler {
 public:
  FakeServer(sim::SimFabric* fabric, const std::string& node, FakeServerScript what, EndpointOptions options,
             uint64_t session)
      : script(std::move(what)), session_(session), log_(LogOptions{}) {
    const sim::SimTransport opened = fabric->Open(node);
    EndpointHandler* handler = this;
    Transport transport = Transport::Adopt(opened.table, opened.transport);
    address_ = *transport.Address();
    endpoint_ = std::make_unique<Endpoint>(std::move(transport), options, handler, &log_);
  }
  ~FakeServer() override {
    windows_.clear();
    results_.clear();
    endpoint_.reset();
  }

  const std::string& address() const { return address_; }

  void Add(Time now, uint32_t own_member, uint32_t own_lane, uint32_t worker, uint32_t rank, PeerId local_id,
           const std::string& address) {
    PeerSpec spec;
    spec.session = session_;
    spec.epoch = 1;
    spec.session_nonce = "nonce";
    spec.own_member = own_member;
    spec.own_lane = own_lane;
    spec.member = worker;
    spec.lane = 0;
    spec.address = address;
    spec.description = "worker";
    spec.local_id = local_id;
    spec.id = worker;
    peer_of_rank_[rank] = worker;
    ASSERT_TRUE(endpoint_->AddPeer(now, spec).ok());
  }

  // Any record, right or wrong.
  void Say(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
    endpoint_->Send(peer, type, body.first(std::min(body.size(), endpoint_->MaxRecord())));
  }
  bool Poll(Time now) { return endpoint_->Poll(now); }
  Time NextTimer() const { return endpoint_->NextTimer(); }

  // What a worker sent: (type, part), in order of arrival.
  std::vector<std::pair<wire::RecordType, uint32_t>> seen;
  std::vector<wire::RoundBody> cancels;
  FakeServerScript script;

 private:
  struct Window {
    AlignedMemory memory;
    Region region;
    uint32_t first_slot = 0;
    PeerId peer = 0;
  };
  struct Round {
    std::map<uint32_t, std::vector<std::byte>> inputs;  // by rank
    std::map<uint32_t, wire::DataHeader> headers;
  };
  struct Result {
    std::vector<std::byte> bytes;
    Region region;
  };

  void OnReady(PeerId peer) override {
    auto window = std::make_unique<Window>();
    window->peer = peer;
    window->memory = AlignedMemory(script.slots * script.slot_bytes);
    window->region = *Region::Make(&endpoint_->transport(), window->memory.data(), window->memory.size());
    window->first_slot = *landing_.TakeRange(script.slots);
    ASSERT_TRUE(
        endpoint_->Lend(peer, window->region.get(), 0, script.slot_bytes, window->first_slot, script.slots).ok());
    windows_.push_back(std::move(window));
  }

  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override {
    if (type == wire::RecordType::kCancel) {
      wire::RoundBody round;
      ASSERT_TRUE(ReadStruct(body, &round));
      seen.emplace_back(type, round.part);
      cancels.push_back(round);
      rounds_.erase({round.key, round.round, round.part});
      if (script.error_to_cancel) {
        round.text = 0;
        endpoint_->Send(peer, wire::RecordType::kError, BytesOf(round));
      }
      return;
    }
    ASSERT_EQ(type, wire::RecordType::kPush);
    Push push;
    ASSERT_TRUE(ReadPush(body, &push));
    const wire::DataHeader& header = push.header;
    seen.emplace_back(type, header.part);
    switch (header.way) {
      case wire::PayloadWay::kNone:
        return Contribute(header, {});
      case wire::PayloadWay::kInline:
        return Contribute(header, push.payload.first(header.payload_bytes));
      case wire::PayloadWay::kLanded: {
        ASSERT_TRUE(landing_.Expects(header.immediate));
        pending_[header.immediate] = header;
        if (landing_.Announce(header.immediate, header.immediate)) Landed(header.immediate);
        return;
      }
      case wire::PayloadWay::kInPlace:
        FAIL() << "in place";
    }
  }

  void OnLanded(uint32_t immediate) override {
    if (landing_.Land(immediate)) Landed(immediate);
  }

  void Landed(uint32_t immediate) {
    const wire::DataHeader header = pending_.at(immediate);
    pending_.erase(immediate);
    const uint32_t slot = wire::ImmediateSlot(immediate);
    for (const auto& window : windows_) {
      if (slot < window->first_slot || slot >= window->first_slot + script.slots) continue;
      const std::byte* at = window->memory.data() + (slot - window->first_slot) * script.slot_bytes;
      Contribute(header, {at, header.payload_bytes});
      if (!script.forgetful_of_slots) endpoint_->Return(window->peer, landing_.Renew(immediate));
      return;
    }
    FAIL() << "no such slot";
  }

  void Contribute(const wire::DataHeader& header, std::span<const std::byte> payload) {
    const PeerId peer = peer_of_rank_.at(header.rank);
    if (script.error != 0) {
      wire::RoundBody round = RoundOf(header);
      round.code = script.error;
      round.flags = script.error_flags;
      round.text = static_cast<uint32_t>(script.error_text.size());
      endpoint_->Send(peer, wire::RecordType::kError, BytesOf(round),
                      std::as_bytes(std::span<const char>(script.error_text.data(), script.error_text.size())));
      return;
    }
    if ((header.flags & wire::kFlagChecksum) != 0) {
      EXPECT_EQ(header.checksum, Crc32c(payload));
      ++script.checked;
    }
    if (script.rates != nullptr) script.rates->push_back(header.rate);
    if (script.send_again > 0) {
      --script.send_again;
      endpoint_->Send(peer, wire::RecordType::kSendAgain, BytesOf(RoundOf(header)));
      return;
    }
    if (script.silent) return;
    auto key = std::make_tuple(header.key, header.round, header.part);
    Round& round = rounds_[key];
    ASSERT_FALSE(round.headers.contains(header.rank));
    round.inputs[header.rank].assign(payload.begin(), payload.end());
    round.headers[header.rank] = header;
    if (round.headers.size() < script.workers) return;
    const Round whole = std::move(round);
    rounds_.erase(key);
    Answer(whole);
  }

  static wire::RoundBody RoundOf(const wire::DataHeader& header) {
    wire::RoundBody round{};
    round.key = header.key;
    round.fingerprint = header.fingerprint;
    round.round = header.round;
    round.part = header.part;
    round.rank = header.rank;
    return round;
  }

  void Answer(const Round& round) {
    const wire::DataHeader& first = round.headers.begin()->second;
    std::vector<float> sum(first.elements, 0.0f);
    if (first.operation == wire::Operation::kBroadcast && !sum.empty()) {
      std::memcpy(sum.data(), round.inputs.at(first.root).data(), sum.size() * sizeof(float));
    } else {
      for (const auto& [rank, input] : round.inputs) {
        for (size_t i = 0; i < sum.size(); ++i) {
          float value;
          std::memcpy(&value, input.data() + i * sizeof(float), sizeof value);
          sum[i] += value;
        }
      }
    }
    for (const auto& [rank, pushed] : round.headers) {
      const PeerId peer = peer_of_rank_.at(rank);
      wire::DataHeader header = pushed;
      header.rank = script.workers;
      header.memory = {};
      header.rate = script.rate;
      header.payload_bytes = sum.size() * sizeof(float);
      const auto payload = std::as_bytes(std::span<const float>(sum));
      if ((header.flags & wire::kFlagChecksum) != 0) header.checksum = Crc32c(payload) + script.altered;
      if (pushed.operation == wire::Operation::kBroadcast && static_cast<int32_t>(rank) == pushed.root) {
        header.way = wire::PayloadWay::kNone;
        header.payload_bytes = header.checksum = 0;
        endpoint_->Send(peer, wire::RecordType::kResult, BytesOf(header));
      } else if (header.payload_bytes <= script.inline_bytes) {
        header.way = wire::PayloadWay::kInline;
        endpoint_->Send(peer, wire::RecordType::kResult, BytesOf(header), payload);
      } else {
        auto result = std::make_unique<Result>();
        result->bytes.assign(payload.begin(), payload.end());
        result->region = *Region::Make(&endpoint_->transport(), result->bytes.data(), result->bytes.size());
        out_.push_back({peer, header, pushed.memory, std::move(result)});
      }
    }
    Flush();
  }

  // Results that wait for a slot or for the transport.
  void Flush() {
    for (size_t i = 0; i < out_.size();) {
      Out& out = out_[i];
      const bps_local local{out.result->region.get(), out.result->bytes.data()};
      bool written;
      if (out.memory.key_size != 0) {
        out.header.immediate = out.memory.immediate;
        const bps_remote remote{out.memory.key, out.memory.key_size, out.memory.offset};
        written = endpoint_->Write(out.peer, local, out.result->bytes.size(), remote, out.memory.immediate, next_);
      } else {
        const std::optional<RemoteSlot> slot = endpoint_->TakeSlot(out.peer);
        written = slot && endpoint_->WriteSlot(out.peer, local, out.result->bytes.size(), *slot, next_);
        if (slot && !written) endpoint_->GiveBack(out.peer, *slot);
        if (written) out.header.immediate = slot->immediate;
      }
      if (!written) {
        ++i;
        continue;
      }
      out.header.way = wire::PayloadWay::kLanded;
      endpoint_->Send(out.peer, wire::RecordType::kResult, BytesOf(out.header));
      results_[next_++] = std::move(out.result);
      out_.erase(out_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  void OnWritten(PeerId, uint64_t user, int32_t) override { results_.erase(user); }
  void OnRoom(PeerId) override { Flush(); }
  void OnPeerDown(PeerId, const absl::Status&) override {}
  void OnRemoved(PeerId) override {}

  struct Out {
    PeerId peer;
    wire::DataHeader header;
    wire::MemoryRef memory;
    std::unique_ptr<Result> result;
  };

  const uint64_t session_;
  Logger log_;
  std::string address_;
  std::unique_ptr<Endpoint> endpoint_;
  LandingTable landing_;
  std::map<uint32_t, PeerId> peer_of_rank_;
  std::vector<std::unique_ptr<Window>> windows_;
  std::map<uint32_t, wire::DataHeader> pending_;
  std::map<std::tuple<uint64_t, uint64_t, uint32_t>, Round> rounds_;
  std::vector<Out> out_;
  std::map<uint64_t, std::unique_ptr<Result>> results_;
  uint64_t next_ = 1;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_CORE_WORKER_ENGINE_FAKE_SERVER_H_
