#include "core/worker/local/neighbours.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/wire/wire.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {
namespace {

constexpr uint32_t kSize = 3;

// One worker of a host: what its local stage does about its neighbours, and no more.
class Worker : public EndpointHandler {
 public:
  Worker(sim::SimFabric* fabric, uint32_t rank) {
    const sim::SimTransport opened = fabric->Open("node" + std::to_string(rank), sim::EndpointOptions{});
    Transport transport = Transport::Adopt(Wary(opened.table), opened.transport);
    address = *transport.Address();
    EndpointOptions options;
    options.session = 42;
    options.hello_interval = 10 * kMillisecond;
    options.hello_timeout = options.ping_interval = options.peer_timeout = 600 * kSecond;
    endpoint = std::make_unique<Endpoint>(std::move(transport), std::move(options), this, &log);
    neighbours.emplace(endpoint.get(), &log);
  }
  ~Worker() override { neighbours->Stop(); }

  void OnReady(PeerId peer) override {
    linked.push_back(Neighbours::IndexOf(peer));
    if (asks) asked.Update(neighbours->OnReady(linked.back()));
  }
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override {
    const size_t index = Neighbours::IndexOf(peer);
    if (type == wire::RecordType::kProbe) {
      EXPECT_TRUE(neighbours->OnProbe(0, index, body));
    } else {
      EXPECT_TRUE(neighbours->OnReach(index, body));
    }
  }
  void OnLanded(uint32_t) override {}
  void OnWritten(PeerId, uint64_t, int32_t) override {}
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId peer, const absl::Status& why) override { neighbours->Lose(Neighbours::IndexOf(peer), why); }
  void OnRemoved(PeerId) override {}

  Logger log;
  std::string address;
  std::unique_ptr<Endpoint> endpoint;
  std::optional<Neighbours> neighbours;
  std::vector<size_t> linked;
  bool asks = true;  // as soon as it is linked
  absl::Status asked;

  static inline bps_peer lost = BPS_PEER_UNKNOWN;  // of all transports; no memory is shown to it

 private:
  // Like shm, which shows no memory to a peer that it has lost.
  static const bps_transport_table* Wary(const bps_transport_table* sim) {
    static bps_transport_table honest, wary;
    honest = wary = *sim;
    wary.export_key = [](bps_transport* transport, bps_region* region, bps_peer peer, void* key) {
      return peer == lost ? BPS_UNAVAILABLE : honest.export_key(transport, region, peer, key);
    };
    return &wary;
  }
};

class NeighboursTest : public testing::Test {
 protected:
  NeighboursTest() {
    Worker::lost = BPS_PEER_UNKNOWN;
    control::Epoch epoch;
    epoch.set_session_id(42);
    epoch.set_epoch(1);
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      workers_.push_back(std::make_unique<Worker>(&fabric_, rank));
      control::Member* member = epoch.add_workers();
      member->set_member(rank + 10);
      member->set_rank(static_cast<int32_t>(rank));
      member->set_pid(rank + 100);
      member->mutable_host()->set_name("host");
      member->mutable_local()->set_address(workers_.back()->address);
    }
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      EXPECT_TRUE(
          workers_[rank]->neighbours->Join(fabric_.now(), epoch, epoch.workers(static_cast<int>(rank)), 0, kSize).ok());
    }
  }

  bool Run(const std::vector<uint32_t>& ranks, const std::function<bool()>& done, Time limit = 10 * kSecond) {
    const Time end = fabric_.now() + limit;
    while (!done()) {
      if (fabric_.now() >= end) return false;
      for (const uint32_t rank : ranks) {
        workers_[rank]->endpoint->Poll(fabric_.now());
        workers_[rank]->neighbours->Answer(fabric_.now());
      }
      bool ticked = false;
      fabric_.Timer(fabric_.now() + 20 * sim::kMicrosecond, [&ticked] { ticked = true; });
      while (!ticked) fabric_.Step();
    }
    return true;
  }

  sim::SimFabric fabric_{sim::FabricOptions{}};
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(NeighboursTest, EveryMemberIsAskedAndHeard) {
  EXPECT_EQ(workers_[0]->neighbours->Missing().find("rank 0"), std::string::npos);
  EXPECT_NE(workers_[0]->neighbours->Missing().find("rank 2 (worker, host host, , pid 102)"), std::string::npos);
  EXPECT_TRUE(Run({0, 1, 2}, [&] {
    bool all = true;
    for (const auto& worker : workers_) all &= worker->neighbours->ready();
    return all;
  }));
  for (const auto& worker : workers_) {
    EXPECT_TRUE(worker->asked.ok()) << worker->asked;
    EXPECT_FALSE(worker->neighbours->FirstLost().has_value());
  }
}

// The transport shows no memory to one that it has lost, before it tells of the loss.
TEST_F(NeighboursTest, AMemberThatIsLostBeforeItIsAskedIsNamedWithTheCause) {
  Worker& self = *workers_[0];
  self.asks = false;
  ASSERT_TRUE(Run({0, 1, 2}, [&] { return self.linked.size() == kSize - 1; }));
  fabric_.Kill("node2");
  Worker::lost = Neighbours::PeerOf(2);
  EXPECT_TRUE(self.neighbours->OnReady(1).ok());
  EXPECT_TRUE(self.neighbours->OnReady(2).ok());
  // Its loss is seen by what it does not take.
  self.endpoint->Send(Neighbours::PeerOf(2), wire::RecordType::kReach, {});
  self.endpoint->Send(Neighbours::PeerOf(2), wire::RecordType::kReach,
                      {});  // its loss is seen by what it does not take
  ASSERT_TRUE(Run({0, 1}, [&] { return self.neighbours->FirstLost().has_value(); }));
  EXPECT_EQ(self.neighbours->FirstLost(), 2u);
  EXPECT_EQ(
      std::string(self.neighbours->lost(2).message()),
      "the connection to rank 2 (worker, host host, , pid 102) is lost: it has ended, or left, or the network has "
      "failed");
  // The other one answers all the same.
  EXPECT_TRUE(Run({0, 1}, [&] { return self.neighbours->Missing().find("rank 1") == std::string::npos; }));
}

}  // namespace
}  // namespace byteps
