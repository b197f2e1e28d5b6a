#include "core/worker/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/plugin/plugin_host.h"
#include "tests/core/worker/engine/engine_test.h"

extern "C" int32_t bps_scheduler_plugin_v1_fifo(const bps_plugin_host*, const bps_scheduler_plugin**);

namespace byteps {
namespace {

using sim::SimFabric;

TEST_P(EngineTest, SumsTensorsOfManySizes) {
  EngineJob job(Options());
  ASSERT_TRUE(job.Connect());
  for (size_t count : {0, 1, 16, 17, 255, 256, 257, 512, 5000, 40000}) {
    const std::string name = "w" + std::to_string(count);
    const std::vector<float> a = Ramp(count, 1), b = Ramp(count, 1000);
    std::vector<float> x(count), y(count);
    std::vector<std::shared_ptr<Request>> requests = {job.PushPull(0, name, a, &x), job.PushPull(1, name, b, &y)};
    ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); })) << count;
    for (const auto& request : requests) EXPECT_TRUE(request->outcome().ok()) << request->outcome();
    EXPECT_EQ(x, Sum(a, b));
    EXPECT_EQ(y, Sum(a, b));
  }
}

TEST_P(EngineTest, InPlaceAndManyAtOnceInOppositeOrders) {
  EngineJob job(Options());
  ASSERT_TRUE(job.Connect());
  constexpr size_t kTensors = 12, kCount = 3000;
  std::vector<std::vector<float>> a(kTensors), b(kTensors);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Request>> requests;
    for (size_t i = 0; i < kTensors; ++i) {
      a[i] = Ramp(kCount, static_cast<float>(i));
      b[i] = Ramp(kCount, static_cast<float>(i * 10 + round));
    }
    const auto before_a = a, before_b = b;
    for (size_t i = 0; i < kTensors; ++i) requests.push_back(job.PushPull(0, "t" + std::to_string(i), a[i], &a[i]));
    for (size_t i = kTensors; i-- > 0;) requests.push_back(job.PushPull(1, "t" + std::to_string(i), b[i], &b[i]));
    ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); }));
    for (size_t i = 0; i < kTensors; ++i) {
      EXPECT_EQ(a[i], Sum(before_a[i], before_b[i]));
      EXPECT_EQ(b[i], a[i]);
    }
  }
}

TEST_P(EngineTest, Broadcast) {
  EngineJob job(Options(3, 2));
  ASSERT_TRUE(job.Connect());
  for (size_t count : {0, 5, 3000}) {
    const std::vector<float> source = Ramp(count, 7);
    std::vector<std::vector<float>> out(3, std::vector<float>(count, -1));
    std::vector<std::shared_ptr<Request>> requests;
    for (uint32_t w = 0; w < 3; ++w) {
      Submission asked;
      asked.kind = wire::Operation::kBroadcast;
      asked.root = 1;
      asked.tensor = job.Declare(w, "b" + std::to_string(count), count);
      asked.input = w == 1 ? reinterpret_cast<const std::byte*>(source.data()) : nullptr;
      asked.output = reinterpret_cast<std::byte*>(out[w].data());
      requests.push_back(job.Submit(w, asked));
    }
    ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); }));
    for (const auto& values : out) EXPECT_EQ(values, source);
  }
}

TEST_P(EngineTest, SendsAgainWhatTheServerDropped) {
  EngineJobOptions options = Options(2, 1);
  options.server.send_again = 25;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  const std::vector<float> a = Ramp(5000, 1), b = Ramp(5000, 2);
  std::vector<float> x(5000), y(5000);
  std::vector<std::shared_ptr<Request>> requests = {job.PushPull(0, "w", a, &x), job.PushPull(1, "w", b, &y)};
  ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); }));
  EXPECT_EQ(x, Sum(a, b));
  EXPECT_EQ(y, x);
  EXPECT_EQ(job.servers[0]->seen.size(), 2u * 20 + 25);
}

// fifo, and what else it was told. (One at a time: tests of one thread.)
struct Told {
  std::vector<uint32_t> rounds;
  std::vector<uint32_t> peers;
  std::vector<uint64_t> agreed;
  bps_scheduler_table fifo = {};
};
Told told;

// fifo, with functions of its own for those that are to be listened to.
struct Listening {
  Listening() {
    const bps_scheduler_plugin* fifo = nullptr;
    EXPECT_EQ(bps_scheduler_plugin_v1_fifo(PluginHost(), &fifo), BPS_OK);
    told = {};
    table = told.fifo = *fifo->table;
    table.struct_size = sizeof table;
    plugin = *fifo;
    plugin.table = &table;
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

  bps_scheduler_table table = {};
  bps_scheduler_plugin plugin = {};
};

TEST_P(EngineTest, TheSchedulerKnowsRoundsAndTellsWhatItsLinkCarries) {
  Listening fifo;
  fifo.table.enqueue = [](bps_scheduler* scheduler, int64_t now, const bps_task* task) {
    told.rounds.push_back(task->round);
    told.fifo.enqueue(scheduler, now, task);
  };
  fifo.table.rate = [](bps_scheduler*) { return uint64_t{77} << 30; };
  fifo.table.agreed = [](bps_scheduler*, int64_t, uint64_t rate) { told.agreed.push_back(rate); };
  std::vector<uint32_t> rates;
  EngineJobOptions options = Options(1, 1);
  options.scheduler = &fifo.plugin;
  options.server.send_again = 3;
  options.server.rates = &rates;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  const std::vector<float> in = Ramp(5000, 1);  // 20 parts
  std::vector<float> out(in.size());
  const std::vector<uint32_t> answers = {0, 5, 5, 9};
  for (size_t round = 0; round < answers.size(); ++round) {
    job.servers[0]->script.rate = answers[round];
    auto request = job.PushPull(0, "w", in, &out);
    ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
    // What a server wants again is of the same round.
    const size_t asked = 20 * (round + 1) + 3;
    ASSERT_EQ(told.rounds.size(), asked);
    EXPECT_EQ(told.rounds.back(), round + 1);
    EXPECT_EQ(std::count(told.rounds.begin(), told.rounds.end(), round + 1), round == 0 ? 23 : 20);
  }
  EXPECT_EQ(told.agreed, (std::vector<uint64_t>{5, 9})) << "once for each change";
  EXPECT_EQ(rates, std::vector<uint32_t>(83, UINT32_MAX)) << "of more than a number holds, the largest there is";
}

// Each worker begins a row of parts at another server, so that no link stands still; but several tensors at once keep
// to one order: in what is interrupted another part would be missing on each worker.
TEST_P(EngineTest, ARowIsTurnedForATensorThatIsAloneAndForNoOther) {
  Listening fifo;
  fifo.table.enqueue = [](bps_scheduler* scheduler, int64_t now, const bps_task* task) {
    told.peers.push_back(task->peer);
    told.fifo.enqueue(scheduler, now, task);
  };
  EngineJobOptions options = Options(2, 4);
  options.scheduler = &fifo.plugin;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  const std::vector<float> in = Ramp(2 * 4 * options.part_elements, 1);  // two rows
  std::vector<float> out(in.size());
  // The servers in the order in which worker 1 hands over the parts of a tensor. EngineJob places part 0 of the name
  // that was declared as number n on server n mod 4.
  const auto servers_from = [](uint32_t first) {
    std::vector<uint32_t> peers;
    for (uint32_t turn = 0; turn < 8; ++turn) peers.push_back(PeerOf({(first + turn) % 4, 0}));
    return peers;
  };
  const auto begin = [&](const char* name, std::vector<float>* to) {
    told.peers.clear();
    auto request = job.PushPull(1, name, in, to);
    EXPECT_TRUE(job.RunUntil([] { return told.peers.size() == 8; }));
    return request;
  };
  std::vector<std::shared_ptr<Request>> requests = {begin("alone", &out)};
  EXPECT_EQ(told.peers, servers_from(1 + 2)) << "half a row on, as the second of two workers";
  std::vector<float> other(in.size());
  requests.push_back(begin("beside it", &other));
  EXPECT_EQ(told.peers, servers_from(2)) << "in the order of the parts";
  std::vector<float> first_of_0(in.size()), second_of_0(in.size());
  requests.push_back(job.PushPull(0, "alone", in, &first_of_0));
  requests.push_back(job.PushPull(0, "beside it", in, &second_of_0));
  ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); }));
  EXPECT_EQ(out, Sum(in, in));
  EXPECT_EQ(other, out);
  begin("alone", &out);
  EXPECT_EQ(told.peers, servers_from(1 + 2)) << "alone again";
}

// What is sent of a tensor that is alone, and not yet folded, is bounded: sent further ahead, the kernel would let each
// worker's connections drift apart. What several tensors have for the servers is not held back.
TEST_P(EngineTest, ATensorThatIsAloneIsSentTwoRowsAhead) {
  if (GetParam().flags == 0) GTEST_SKIP() << "it has no slots";
  EngineJobOptions options = Options(1, 2);
  options.server.slots = 6;
  options.server.forgetful_of_slots = true;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  const std::vector<float> in = Ramp(40 * options.part_elements, 1);
  std::vector<float> out(in.size()), other(in.size());
  const auto pushed = [&] { return job.servers[0]->seen.size() + job.servers[1]->seen.size(); };
  std::vector<std::shared_ptr<Request>> requests = {job.PushPull(0, "alone", in, &out)};
  ASSERT_TRUE(job.RunUntil([&] { return pushed() == 4; }));
  EXPECT_FALSE(job.RunUntil([&] { return pushed() > 4; }, 50 * kMillisecond));
  if (GetParam().flags == BPS_TRANSPORT_CHEAP_REG) {
    requests.push_back(job.PushPull(0, "beside it", in, &other));
    ASSERT_TRUE(job.RunUntil([&] { return pushed() == 12; }, 10 * kMillisecond)) << "not held back beside another";
  } else {
    // No order in which the workers send can make them wait for one another for good.
    ASSERT_TRUE(job.RunUntil([&] { return pushed() == 12; }, 100 * kMillisecond)) << "nothing comes back";
  }
  EXPECT_FALSE(job.RunUntil([&] { return pushed() > 12; }, kSecond)) << "more than there are slots";
}

// Where no network is between: what is under way falls out of the caches, and fills no link.
TEST_P(EngineTest, ATensorThatIsAloneIsSentOneRowAheadToServersOfTheSameLink) {
  if (GetParam().flags == 0) GTEST_SKIP() << "it has no slots";
  for (const uint32_t at_home : {1, 2}) {
    EngineJobOptions options = Options(1, 2);
    options.server.slots = 6;
    options.server.forgetful_of_slots = true;
    options.servers_at_home = at_home;
    const std::vector<float> in = Ramp(40 * options.part_elements, 1);
    std::vector<float> out(in.size());
    EngineJob job(options);
    ASSERT_TRUE(job.Connect());
    const auto pushed = [&] { return job.servers[0]->seen.size() + job.servers[1]->seen.size(); };
    const auto request = job.PushPull(0, "alone", in, &out);
    const size_t ahead = at_home == 2 ? 2 : 4;
    ASSERT_TRUE(job.RunUntil([&] { return pushed() == ahead; }));
    EXPECT_FALSE(job.RunUntil([&] { return pushed() > ahead; }, 50 * kMillisecond)) << at_home;
    EXPECT_TRUE(job.RunUntil([&] { return pushed() == 12; }, 100 * kMillisecond)) << "nothing comes back";
    EXPECT_FALSE(job.RunUntil([&] { return pushed() > 12; }, kSecond)) << "more than there are slots";
  }
}

TEST_P(EngineTest, WindowOfOneSlot) {
  EngineJobOptions options = Options(2, 1);
  options.server.slots = 1;
  options.window_slots = 1;
  options.bounce_blocks = 1;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(20000, 1), b = Ramp(20000, 2), x(20000), y(20000);
  std::vector<std::shared_ptr<Request>> requests = {job.PushPull(0, "w", a, &x), job.PushPull(1, "w", b, &y)};
  ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); }));
  EXPECT_EQ(x, Sum(a, b));
}

TEST_P(EngineTest, NetworksAsBadAsTheContractAllows) {
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    EngineJobOptions options = Options(2, 2);
    options.fabric.seed = seed;
    sim::Random random(seed);
    options.fabric.link = sim::AdverseLink(random);
    const uint32_t flags = options.worker_flags;
    options.fabric.endpoint = sim::AdverseEndpoint(random);
    options.worker_flags = flags;
    options.server.send_again = 3;
    EngineJob job(options);
    ASSERT_TRUE(job.Connect()) << "seed " << seed;
    for (int round = 0; round < 3; ++round) {
      const std::vector<float> a = Ramp(5000, 1), b = Ramp(5000, 2), c = Ramp(9, 1), d = Ramp(9, 5);
      std::vector<float> x(5000), y(5000), z(9), u(9);
      std::vector<std::shared_ptr<Request>> requests = {job.PushPull(0, "w", a, &x), job.PushPull(1, "v", d, &u),
                                                        job.PushPull(0, "v", c, &z), job.PushPull(1, "w", b, &y)};
      ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); })) << "seed " << seed;
      for (const auto& request : requests) ASSERT_TRUE(request->outcome().ok()) << request->outcome();
      EXPECT_EQ(x, Sum(a, b)) << "seed " << seed;
      EXPECT_EQ(y, x);
      EXPECT_EQ(z, Sum(c, d));
      EXPECT_EQ(u, z);
    }
  }
}

BPS_INSTANTIATE_ENGINE_TEST();

}  // namespace
}  // namespace byteps
