// A lane whose thread meets an exception that belongs to no session: all its sessions break, and it serves later ones.
#include "server/reducer/lane.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {
namespace {

constexpr uint32_t kServerMember = 1;

// The fabric's transport, but for a poll that throws once when it is told to.
const bps_transport_table* fabric_table = nullptr;
std::atomic<bool> throws{false};

size_t ThrowingPoll(bps_transport* transport, bps_event* events, size_t capacity) {
  if (throws.exchange(false)) throw std::runtime_error("out of order");
  return fabric_table->poll(transport, events, capacity);
}

class LaneTest : public testing::Test {
 protected:
  LaneTest() {
    const sim::SimTransport opened = fabric_.Open("server", sim::EndpointOptions());
    fabric_table = opened.table;
    table_ = *opened.table;
    table_.poll = ThrowingPoll;
    LaneOptions options;
    options.reducer.transport = "sim";
    options.reducer.memory = 16 << 20;
    options.reducer.slot_bytes = 16384;
    options.reducer.slots_per_peer = 4;
    options.reducer.inline_bytes = 1024;
    options.reducer.endpoint.token = "secret";
    // From here on the fabric is the lane's thread's.
    worker_address_ = *WorkerTransport().Address();
    auto lane = Lane::Start(
        Transport::Adopt(&table_, opened.transport), options, [this](const BrokenSession& broken) { OnBroken(broken); },
        log_);
    EXPECT_TRUE(lane.ok()) << lane.status();
    if (lane.ok()) lane_ = *std::move(lane);
  }

  Transport& WorkerTransport() {
    const sim::SimTransport opened = fabric_.Open("worker", sim::EndpointOptions());
    worker_.push_back(Transport::Adopt(opened.table, opened.transport));
    return worker_.back();
  }

  void OnBroken(const BrokenSession& broken) {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_.push_back(broken);
    came_.notify_all();
  }

  // Of one worker, which never answers.
  control::Epoch EpochOf(uint64_t session) const {
    control::Epoch epoch;
    epoch.set_session_id(session);
    epoch.set_epoch(1);
    epoch.set_nonce("0123456789abcdef");
    epoch.set_slot_bytes(16384);
    control::Member* server = epoch.add_servers();
    server->set_member(kServerMember);
    server->set_role(control::SERVER);
    *server->add_lanes() = lane_->address();
    control::Member* worker = epoch.add_workers();
    worker->set_member(100 + static_cast<uint32_t>(session));
    worker->set_role(control::WORKER);
    worker->mutable_host()->set_name("worker");
    control::Lane* lane = worker->add_lanes();
    lane->set_transport("sim");
    lane->set_address(worker_address_);
    return epoch;
  }

  // Lets the lane meet an exception, and expects that session `id` alone breaks of it.
  void ExpectBreaks(uint64_t id) {
    lane_->AddSession(EpochOf(id), kServerMember);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    // An exception before the session is there breaks nothing: so again, until it is.
    std::unique_lock<std::mutex> lock(mutex_);
    while (broken_.empty() && std::chrono::steady_clock::now() < until) {
      throws = true;
      came_.wait_for(lock, std::chrono::milliseconds(10));
    }
    throws = false;
    ASSERT_EQ(broken_.size(), 1u);
    EXPECT_EQ(broken_[0].session, id);
    EXPECT_EQ(broken_[0].why.code(), absl::StatusCode::kInternal);
    EXPECT_NE(broken_[0].why.ToString().find("out of order"), std::string::npos) << broken_[0].why;
    broken_.clear();
    lock.unlock();
    lane_->EndSession(id);
  }

  Logger log_{LogOptions{}};
  sim::SimFabric fabric_{sim::FabricOptions()};
  bps_transport_table table_;
  std::vector<Transport> worker_;
  std::string worker_address_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<BrokenSession> broken_;  // under mutex_
  std::unique_ptr<Lane> lane_;         // first to go: its thread uses the others
};

TEST_F(LaneTest, AnExceptionOfNoSessionBreaksAllAndLaterOnesAreServed) {
  ASSERT_NE(lane_, nullptr);
  ExpectBreaks(1);
  ExpectBreaks(2);
}

}  // namespace
}  // namespace byteps
