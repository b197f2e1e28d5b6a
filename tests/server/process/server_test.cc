// A Server as byteps_server runs it: lanes with threads of their own, over TCP through libfabric.
#include "server/process/server.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "core/plugin/plugin_registry.h"
#include "gtest/gtest.h"
#include "tests/server/process/idleness.h"
#include "tests/server/reducer/scripted_worker.h"
#include "tests/server/reducer/together.h"

extern "C" int32_t bps_transport_plugin_v1_tcp(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps {
namespace {

constexpr uint32_t kServerMember = 1;
constexpr uint64_t kSlotBytes = 65536;

class ServerTest : public testing::Test {
 protected:
  ServerTest() : config_(*Config::Make({})), registry_(config_, log_) {
    registry_.RegisterBuiltin(bps_transport_plugin_v1_tcp);
    endpoint_.hello_interval = 20 * kMillisecond;
    endpoint_.hello_timeout = 20 * kSecond;
    endpoint_.ping_interval = 5 * kSecond;
    endpoint_.peer_timeout = 15 * kSecond;
    endpoint_.token = "secret";
  }

  absl::StatusOr<Transport> Open() { return registry_.OpenTransport("tcp", "127.0.0.1"); }

  void StartServer(uint32_t lanes) {
    ServerOptions options = ServerOptionsFrom(config_, "secret");
    options.lanes = lanes;
    options.memory = lanes * (8u << 20);
    options.lane.reducer.slot_bytes = kSlotBytes;
    options.lane.reducer.endpoint = endpoint_;
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
        options, [this](uint32_t, PluginCalls*) { return Open(); }, log_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Lane by lane, as many workers as the session has: a scripted worker talks to one lane.
  struct Job {
    control::Epoch epoch;
    std::vector<ReductionSession> lanes;
  };

  std::unique_ptr<Job> Begin(uint32_t size, uint32_t lane) {
    auto job = std::make_unique<Job>();
    control::Epoch& epoch = job->epoch;
    epoch.set_session_id(next_session_++);
    epoch.set_epoch(1);
    epoch.set_nonce("0123456789abcdef");
    epoch.set_slot_bytes(kSlotBytes);
    control::Hello hello;
    server_->FillHello(&hello);
    control::Member* member = epoch.add_servers();
    member->set_member(kServerMember);
    *member->mutable_lanes() = hello.lanes();
    job->lanes.emplace_back();
    for (uint32_t rank = 0; rank < size; ++rank) {
      ScriptedWorkerOptions options;
      options.member = next_member_++;
      options.node = "here";
      options.rank = rank;
      options.slot_bytes = kSlotBytes;
      options.endpoint = endpoint_;
      options.transport_name = "tcp";
      job->lanes[0].workers.push_back(std::make_unique<ScriptedWorker>(*Open(), options));
      *epoch.add_workers() = job->lanes[0].workers.back()->member();
    }
    job->lanes[0].epoch = epoch;
    for (auto& worker : job->lanes[0].workers) EXPECT_TRUE(worker->Join(Now(), epoch, lane).ok());
    server_->OnEpoch(epoch, kServerMember);
    return job;
  }

  template <typename Done>
  bool Run(ReductionSession* session, const Done& done, Time limit = 60 * kSecond) {
    const Time end = Now() + limit;
    while (Now() < end) {
      for (auto& worker : session->workers) worker->Poll(Now());
      if (done()) return true;
    }
    return false;
  }

  bool Ready(ReductionSession* session) {
    return Run(session, [&] {
      return std::all_of(session->workers.begin(), session->workers.end(), [](const auto& worker) {
        return worker->ready() && worker->endpoint().FreeSlots(worker->server()) > 0;
      });
    });
  }

  Logger log_;
  Config config_;
  PluginRegistry registry_;
  EndpointOptions endpoint_;
  std::unique_ptr<Server> server_;
  uint64_t next_session_ = 1;
  uint32_t next_member_ = 2;
};

TEST_F(ServerTest, EachLaneReduces) {
  StartServer(2);
  for (uint32_t lane = 0; lane < 2; ++lane) {
    auto job = Begin(2, lane);
    ReductionSession* session = &job->lanes[0];
    ASSERT_TRUE(Ready(session));
    std::vector<Together> rounds;
    for (uint64_t name = 1; name <= 60; ++name) {
      Ask ask;
      ask.key = name << 16;
      ask.elements = name % 3 == 0 ? 100 : kSlotBytes / 4;
      ask.in_record = ask.elements == 100;
      ask.place = name % 2 == 0 ? ResultPlace::kDirect : ResultPlace::kLentSlot;
      rounds.emplace_back(ask, 2, std::vector<uint32_t>{}, name);
    }
    for (const Together& round : rounds) session->worker(0).Push(round.of(0));
    for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) session->worker(1).Push(round->of(1));
    ASSERT_TRUE(Run(session, [&] {
      return std::all_of(rounds.begin(), rounds.end(), [&](const Together& round) { return round.Home(session); });
    }));
    for (const Together& round : rounds) round.Check(session);
    server_->OnSessionEnded(session->id());
  }
  server_->Stop();
}

TEST_F(ServerTest, AnIdleServerUsesNoCpu) {
  StartServer(2);
  auto job = Begin(2, 0);
  ASSERT_TRUE(Ready(&job->lanes[0]));
  // The workers are polled by this thread alone, which now does nothing.
  struct pollfd nothing = {-1, 0, 0};
  poll(&nothing, 1, 100);
  EXPECT_TRUE(AreIdle({getpid()}));
  EXPECT_TRUE(server_->TakeBroken().empty());
}

// A signal that outlives the letter it was for wakes the lane until the next one comes: each time the last letter
// counts. Several lanes, because they get in each other's way as those of a busy server do.
TEST_F(ServerTest, MailForALaneThatIsAwakeLetsItSleepAgain) {
  constexpr Time kWindow = 2 * kMillisecond;
  StartServer(8);
  const auto used_in = [](Time window) {
    const Time before = CpuTime(getpid());
    poll(nullptr, 0, static_cast<int>(window / kMillisecond));
    return CpuTime(getpid()) - before;
  };
  for (uint64_t trial = 0; trial < 800; ++trial) {
    for (uint64_t letter = 0; letter <= trial % 16; ++letter) server_->OnSessionEnded(1'000'000 + letter);
    poll(nullptr, 0, 1);
    // On a loaded machine they may only have begun to read.
    if (used_in(kWindow) < kWindow / 2) continue;
    ASSERT_LT(used_in(20 * kWindow), 5 * kWindow) << "trial " << trial;
  }
}

TEST_F(ServerTest, ABrokenSessionIsToldOnceAndWakes) {
  StartServer(2);
  auto job = Begin(2, 0);
  ReductionSession* session = &job->lanes[0];
  ASSERT_TRUE(Ready(session));
  session->workers.pop_back();  // rank 1 closes its endpoint
  const Time end = Now() + 60 * kSecond;
  std::vector<BrokenSession> broken;
  while (broken.empty() && Now() < end) {
    struct pollfd wake = {server_->wake_fd(), POLLIN, 0};
    if (poll(&wake, 1, 100) > 0) broken = server_->TakeBroken();
    session->workers[0]->Poll(Now());
  }
  ASSERT_EQ(broken.size(), 1u);
  EXPECT_EQ(broken[0].session, session->id());
  EXPECT_EQ(broken[0].member, job->epoch.workers(1).member());
  server_->OnSessionEnded(session->id());
  EXPECT_TRUE(server_->TakeBroken().empty());
}

TEST_F(ServerTest, ASessionThatDoesNotFitIsToldAsBroken) {
  StartServer(1);
  control::Epoch epoch;
  epoch.set_session_id(9);
  epoch.set_slot_bytes(kSlotBytes);
  epoch.add_servers()->set_member(kServerMember);
  for (int i = 0; i < 1000; ++i) epoch.add_workers()->set_member(100 + static_cast<uint32_t>(i));
  server_->OnEpoch(epoch, kServerMember);
  struct pollfd wake = {server_->wake_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&wake, 1, 60000), 1);
  const std::vector<BrokenSession> broken = server_->TakeBroken();
  ASSERT_EQ(broken.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(broken[0].why)) << broken[0].why;
}

TEST_F(ServerTest, ManyLivesLeaveNothing) {
  StartServer(1);
  for (int life = 0; life < 10; ++life) {
    auto job = Begin(2, 0);
    ReductionSession* session = &job->lanes[0];
    ASSERT_TRUE(Ready(session));
    Ask ask;
    ask.elements = 5000;
    const Together round(ask, 2, {}, 1);
    round.PushAll(session);
    ASSERT_TRUE(Run(session, [&] { return round.Home(session); }));
    round.Check(session);
    server_->OnSessionEnded(session->id());
  }
  const Time end = Now() + 60 * kSecond;
  // As of the lane's last idle moment: the end of the last session, at last.
  while ((server_->stats().rounds < 10 || server_->stats().pool.windows != 0) && Now() < end) sched_yield();
  EXPECT_EQ(server_->stats().pool.windows, 0u);
  EXPECT_EQ(server_->stats().pool.blocks, 0u);
  EXPECT_EQ(server_->stats().parts, 0u);
  EXPECT_EQ(server_->stats().rounds, 10u);
  EXPECT_NE(server_->DescribeUse().find("10 partitions reduced"), std::string::npos) << server_->DescribeUse();
}

TEST(ServerOptionsTest, FromTheTable) {
  const Config config = *Config::Make(
      {{"BYTEPS_SERVER_ENGINE_THREAD", "3"}, {"BYTEPS_SERVER_MEMORY", "300M"}, {"BYTEPS_HEARTBEAT_INTERVAL", "0"}});
  const ServerOptions options = ServerOptionsFrom(config, "t");
  EXPECT_EQ(options.lanes, 3u);
  EXPECT_GT(options.memory, 290u << 20);
  EXPECT_EQ(options.lane.reducer.endpoint.ping_interval, 0);
  EXPECT_EQ(options.lane.reducer.slot_bytes, 512u << 10);
  EXPECT_EQ(DefaultLanes(0), 1u);
  EXPECT_EQ(DefaultLanes(2), 1u);
  EXPECT_EQ(DefaultLanes(7), 3u);
  EXPECT_EQ(DefaultLanes(128), 4u);
  const ServerOptions unset = ServerOptionsFrom(*Config::Make({}), "");
  EXPECT_GE(unset.lanes, 1u);
  EXPECT_LE(unset.lanes, 4u);
  EXPECT_EQ(unset.lane.reducer.endpoint.ping_interval, 5 * kSecond);
  EXPECT_EQ(unset.lane.reducer.endpoint.peer_timeout, 30 * kSecond);
}

}  // namespace
}  // namespace byteps
