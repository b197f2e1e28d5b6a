#include "tests/server/reducer/reduction_world.h"

#include <string>

#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr uint32_t kServerMember = 1;

}  // namespace

ReductionWorld::ReductionWorld(const ReductionWorldOptions& options) : options_(options) {
  sim::FabricOptions fabric;
  fabric.seed = sim::SeedOr(options.seed);
  sim::Random random(fabric.seed);
  if (options.seed != 0) fabric.link = sim::AdverseLink(random);
  fabric_ = std::make_unique<sim::SimFabric>(fabric);
  if (options.seed != 0) transport_ = sim::AdverseEndpoint(fabric_->random());
  transport_.flags |= BPS_TRANSPORT_LOCAL_ANY | options.more_flags;
  transport_.map_delay = options.map_delay;
  endpoint_.hello_interval = 10 * kMillisecond;
  endpoint_.hello_timeout = 10 * kSecond;
  endpoint_.ping_interval = kSecond;
  endpoint_.peer_timeout = 4 * kSecond;
  endpoint_.token = "secret";

  ReducerOptions reducer;
  reducer.endpoint = endpoint_;
  reducer.transport = "sim";
  reducer.memory = options.memory;
  reducer.slot_bytes = options.slot_bytes;
  reducer.slots_per_peer = options.slots_per_peer;
  reducer.inline_bytes = options.inline_bytes;
  reducer.most_idle_parts = options.most_idle_parts;
  reducer.stall_warning = options.stall_warning;
  const sim::SimTransport opened = fabric_->Open("server", transport_);
  const bps_transport_table* table = options.wrap == nullptr ? opened.table : options.wrap(opened.table);
  reducer_ = *Reducer::Make(Transport::Adopt(table, opened.transport), reducer, &log_);
}

absl::Status ReductionWorld::Begin(uint32_t size, const std::vector<uint32_t>& groups, ReductionSession** out) {
  sessions_.push_back(std::make_unique<ReductionSession>());
  ReductionSession* session = sessions_.back().get();
  if (out != nullptr) *out = session;
  control::Epoch& epoch = session->epoch;
  epoch.set_session_id(next_session_++);
  epoch.set_epoch(1);
  epoch.set_nonce("0123456789abcdef");
  epoch.set_slot_bytes(options_.slot_bytes);
  epoch.set_asynchronous(options_.asynchronous);
  epoch.set_staleness(options_.staleness);
  for (uint32_t group : groups) epoch.add_group_sizes(group);
  control::Member* server = epoch.add_servers();
  server->set_member(kServerMember);
  server->set_role(control::SERVER);
  control::Lane* lane = server->add_lanes();
  lane->set_transport("sim");
  lane->set_address(*reducer_->Address());
  for (uint32_t rank = 0; rank < size; ++rank) {
    ScriptedWorkerOptions worker;
    worker.member = next_member_++;
    worker.node = "worker" + std::to_string(worker.member);
    worker.rank = rank;
    worker.slot_bytes = options_.slot_bytes;
    worker.lent_slots = options_.lent_slots;
    worker.endpoint = endpoint_;
    const sim::SimTransport opened = fabric_->Open(worker.node, transport_);
    session->workers.push_back(
        std::make_unique<ScriptedWorker>(Transport::Adopt(opened.table, opened.transport), worker));
    *epoch.add_workers() = session->workers.back()->member();
  }
  for (auto& worker : session->workers) {
    if (absl::Status status = worker->Join(now(), epoch); !status.ok()) return status;
  }
  return reducer_->AddSession(now(), epoch, kServerMember);
}

ReductionSession* ReductionWorld::Open(uint32_t size, std::vector<uint32_t> groups) {
  ReductionSession* session = nullptr;
  const absl::Status status = Begin(size, groups, &session);
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return nullptr;
  const bool ready = Run([&] {
    for (auto& worker : session->workers) {
      if (!worker->ready() || worker->endpoint().FreeSlots(worker->server()) == 0) return false;
    }
    return true;
  });
  EXPECT_TRUE(ready);
  return ready ? session : nullptr;
}

bool ReductionWorld::Run(const std::function<bool()>& done, Time limit) {
  const Time end = now() + limit;
  while (now() < end) {
    reducer_->Poll(now());
    for (auto& session : sessions_) {
      for (auto& worker : session->workers) worker->Poll(now());
    }
    if (done()) return true;
    bool ticked = false;
    fabric_->Timer(now() + 20 * sim::kMicrosecond, [&ticked] { ticked = true; });
    while (!ticked) fabric_->Step();
  }
  return false;
}

void ReductionWorld::Remove(ReductionSession* session) {
  std::erase_if(sessions_, [session](const auto& candidate) { return candidate.get() == session; });
}

}  // namespace byteps
