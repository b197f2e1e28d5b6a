// The schedulers of the tree in whole jobs: what is urgent comes home first, nothing is stuck, and no bit depends on
// it.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

constexpr size_t kPartition = 64 << 10;

// A quiet network; each worker and server has 200 Mbit/s, each way.
JobOptions Slow(const std::string& scheduler) {
  JobOptions options;
  options.adverse = false;
  options.endpoint.bytes_per_second = 25'000'000;
  options.link.latency = 100'000;
  options.workers = 2;
  options.partition_bytes = kPartition;
  options.slot_bytes = kPartition;
  options.slots_per_peer = 4;
  options.server_memory = 64 << 20;
  options.scheduler = scheduler;
  return options;
}

Ask AskFor(const std::string& name, const std::vector<float>& input, int32_t priority) {
  Ask ask;
  ask.name = name;
  ask.shape = {static_cast<int64_t>(input.size())};
  const auto* bytes = reinterpret_cast<const std::byte*>(input.data());
  ask.input.assign(bytes, bytes + input.size() * sizeof(float));
  ask.priority = priority;
  return ask;
}

// The same from all workers.
void SubmitAll(SimulatedJob* job, Ask ask, std::vector<Call*>* calls) {
  for (uint32_t rank = 0; rank < job->workers(); ++rank) calls->push_back(job->worker(rank).Submit(ask));
}

struct Times {
  Time urgent = 0;  // until the late urgent one was home everywhere
  Time all = 0;     // until everything was
};

// Three tensors of a megabyte are on their way for `head_start` when a small urgent one comes.
Times Race(JobOptions options, wire::Operation kind, Time head_start) {
  SimulatedJob job(std::move(options));
  Times times;
  if (!job.Start()) {
    ADD_FAILURE() << "the job did not start";
    return times;
  }
  const std::vector<float> large(250'000, 1.5F), small(4'000, 0.25F);
  const auto submit = [&](const std::string& name, std::vector<Call*>* calls) {
    const bool is_small = name == "urgent";
    Ask ask = AskFor(name, is_small ? small : large, is_small ? 7 : 0);
    ask.kind = kind;
    SubmitAll(&job, ask, calls);
  };
  std::vector<Call*> first, all, urgent;
  // Once before: the way to the coordinator and back is not what is measured.
  for (const char* name : {"a", "b", "c", "urgent"}) submit(name, &first);
  EXPECT_TRUE(job.RunUntilEnded(first));
  const Time begin = job.fabric().now();
  for (const char* name : {"a", "b", "c"}) submit(name, &all);
  job.RunFor(head_start);
  const Time late = job.fabric().now();
  submit("urgent", &urgent);
  EXPECT_TRUE(job.RunUntilEnded(urgent));
  times.urgent = job.fabric().now() - late;
  EXPECT_TRUE(job.RunUntilEnded(all));
  times.all = job.fabric().now() - begin;
  all.insert(all.end(), urgent.begin(), urgent.end());
  const float factor = kind == wire::Operation::kPushPull ? static_cast<float>(job.workers()) : 1.0F;
  for (const Call* call : all) {
    EXPECT_TRUE(call->ok()) << call->outcome();
    const std::vector<float>& input = call->name == "urgent" ? small : large;
    EXPECT_EQ(call->Output<float>(), std::vector<float>(input.size(), factor * input.front())) << call->name;
  }
  job.Finish();
  testing::Test::RecordProperty(job.options().scheduler + (job.options().schedule_results ? "_results" : ""),
                                std::to_string(times.urgent) + " of " + std::to_string(times.all));
  return times;
}

// Two workers send 6 MB over the server's 25 MB/s: 240 ms. Four slots of each worker hold 21 ms of it; `credit` starts
// less.
TEST(Schedulers, ALateUrgentTensorComesHomeFirst) {
  const auto race = [](const std::string& scheduler) {
    return Race(Slow(scheduler), wire::Operation::kPushPull, 10 * kMillisecond);
  };
  const Times fifo = race("fifo"), priority = race("priority"), credit = race("credit");
  EXPECT_GT(fifo.urgent, 200 * kMillisecond);
  EXPECT_LT(priority.urgent, 60 * kMillisecond);
  EXPECT_LT(credit.urgent, 50 * kMillisecond);
  EXPECT_LE(credit.urgent, priority.urgent);
  // Order costs next to nothing, and neither does holding back.
  EXPECT_LT(priority.all, fifo.all * 107 / 100);
  EXPECT_LT(credit.all, fifo.all * 107 / 100);
}

// Where kernels take a megabyte of each connection, what is urgent waits behind it, until the pace of the link is
// known: then no more than the link carries is handed over, and the link is as busy as before. (Two large tensors: of
// one alone workers send less ahead.)
TEST(Schedulers, TheUrgentOvertakesWhatKernelsWouldHold) {
  JobOptions options = Slow("credit");
  options.servers = 2;
  options.slots_per_peer = 8;
  options.inline_bytes = 4096;
  options.slowness = 20'000;
  options.endpoint.flags |= BPS_TRANSPORT_CHEAP_REG;
  options.endpoint.socket_bytes = 1'000'000;
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  const std::vector<float> large(2'500'000, 1.5F), small(4'000, 0.25F);
  std::vector<Times> rounds;
  for (int round = 0; round < 9; ++round) {
    std::vector<Call*> all, urgent;
    const Time begin = job.fabric().now();
    SubmitAll(&job, AskFor("large", large, 0), &all);
    SubmitAll(&job, AskFor("as large", large, 0), &all);
    job.RunFor(200 * kMillisecond);
    const Time late = job.fabric().now();
    SubmitAll(&job, AskFor("urgent", small, 7), &urgent);
    ASSERT_TRUE(job.RunUntilEnded(urgent));
    Times times;
    times.urgent = job.fabric().now() - late;
    ASSERT_TRUE(job.RunUntilEnded(all));
    times.all = job.fabric().now() - begin;
    rounds.push_back(times);
    SCOPED_TRACE(round);
    RecordProperty("round" + std::to_string(round), std::to_string(times.urgent) + " of " + std::to_string(times.all));
    for (const Call* call : all) EXPECT_EQ(call->Output<float>(), std::vector<float>(large.size(), 3.0F));
  }
  job.Finish();
  for (int round = 6; round < 9; ++round) {
    EXPECT_LT(rounds[round].urgent, rounds[2].urgent / 2) << "round " << round;
    EXPECT_LT(rounds[round].all, rounds[2].all * 105 / 100) << "round " << round;
  }
}

// One worker sends, five receive: results queue up at the server, and contributions do not.
TEST(Schedulers, ResultsToo) {
  const auto race = [](bool results) {
    JobOptions options = Slow("credit");
    options.workers = 6;
    options.schedule_results = results;
    return Race(options, wire::Operation::kBroadcast, 150 * kMillisecond);
  };
  const Times as_they_come = race(false), scheduled = race(true);
  EXPECT_GT(as_they_come.urgent, 100 * kMillisecond);
  EXPECT_LT(scheduled.urgent, as_they_come.urgent / 2);
  EXPECT_LT(scheduled.all, as_they_come.all * 107 / 100);
}

// Tensors in opposite orders, credit for one partition, a window of one slot: no member waits for another.
TEST(Schedulers, ReversedOrdersWithCreditForOnePartitionDoNotLock) {
  for (const char* credit : {"1", "4096B"}) {
    ForEachSeed(40, [&](uint64_t seed) {
      JobOptions options;
      options.seed = seed;
      options.slots_per_peer = 1;
      options.window_slots = 1;
      options.bounce_blocks = 1;
      options.scheduler = "credit";
      options.scheduling_credit = credit;
      options.schedule_results = seed % 2 == 0;
      SimulatedJob job(options);
      ASSERT_TRUE(job.Start());
      std::vector<std::vector<std::vector<float>>> inputs;
      for (int tensor = 0; tensor < 6; ++tensor) inputs.push_back({job.Numbers(3000), job.Numbers(3000)});
      std::vector<Call*> calls;
      for (uint32_t rank = 0; rank < 2; ++rank) {
        for (int i = 0; i < 6; ++i) {
          const int tensor = rank == 0 ? i : 5 - i;
          // What one holds most urgent is least urgent to the other.
          calls.push_back(job.worker(rank).Submit(AskFor("t" + std::to_string(tensor), inputs[tensor][rank], -i)));
        }
      }
      ASSERT_TRUE(job.RunUntilEnded(calls));
      for (const Call* call : calls) {
        ASSERT_TRUE(call->ok()) << call->outcome();
        ASSERT_EQ(call->Output<float>(), SimulatedJob::Sum(inputs[call->name[1] - '0']));
      }
      job.Finish();
    });
  }
}

// On any network, with any priorities: the same bits, those of the fold in rank order.
TEST(Schedulers, NoBitDependsOnThem) {
  ForEachSeed(30, [](uint64_t seed) {
    for (const char* scheduler : {"fifo", "priority", "credit"}) {
      SCOPED_TRACE(scheduler);
      JobOptions options;
      options.seed = seed;
      options.workers = 3;
      options.servers = 2;
      options.scheduler = scheduler;
      options.schedule_results = seed % 2 == 1;
      SimulatedJob job(options);
      ASSERT_TRUE(job.Start());
      for (int round = 0; round < 2; ++round) {
        std::vector<std::vector<std::vector<float>>> inputs(5);
        std::vector<Call*> calls;
        for (size_t tensor = 0; tensor < inputs.size(); ++tensor) {
          const size_t elements = 1 + job.fabric().random().Below(6000);
          for (uint32_t rank = 0; rank < 3; ++rank) inputs[tensor].push_back(job.Numbers(elements));
        }
        for (uint32_t rank = 0; rank < 3; ++rank) {
          for (size_t tensor = 0; tensor < inputs.size(); ++tensor) {
            const auto priority = static_cast<int32_t>(job.fabric().random().Next());
            calls.push_back(
                job.worker(rank).Submit(AskFor("t" + std::to_string(tensor), inputs[tensor][rank], priority)));
          }
        }
        ASSERT_TRUE(job.RunUntilEnded(calls));
        for (const Call* call : calls) {
          ASSERT_TRUE(call->ok()) << call->outcome();
          ASSERT_EQ(call->Output<float>(), SimulatedJob::Sum(inputs[call->name[1] - '0']));
        }
      }
      job.Finish();
    }
  });
}

}  // namespace
}  // namespace byteps
