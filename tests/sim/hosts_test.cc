// Several hosts, some with several workers: these reduce among themselves, and one of them speaks for all at the servers.

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Two or three hosts with one to three workers each, at least one with several; the first has two or more.
JobOptions HostsOptions(uint64_t seed) {
  sim::Random random(seed);
  JobOptions options;
  options.seed = seed;
  options.hosts = {static_cast<uint32_t>(random.Between(2, 3))};
  const auto more = random.Between(1, 2);
  for (int64_t host = 0; host < more; ++host) options.hosts.push_back(static_cast<uint32_t>(random.Between(1, 3)));
  options.workers = 0;
  for (const uint32_t size : options.hosts) options.workers += size;
  options.servers = random.Chance(0.5) ? 1 : 3;
  options.lanes = static_cast<uint32_t>(random.Between(1, 2));
  options.partition_bytes = 512u << random.Below(5);
  options.slot_bytes = 8192;
  options.slots_per_peer = static_cast<uint32_t>(random.Between(1, 4));
  options.inline_bytes = random.Chance(0.3) ? 0 : 1024;
  options.groups = "host";
  options.local = true;
  options.copy_refused = random.Chance(0.3);
  return options;
}

bool Ended(const std::vector<Call*>& calls) {
  for (const Call* call : calls) {
    if (!call->ended()) return false;
  }
  return true;
}

Ask FloatAsk(const std::string& name, size_t elements) {
  Ask ask;
  ask.name = name;
  ask.shape = {static_cast<int64_t>(elements)};
  ask.input.resize(elements * 4);
  ask.timeout = 60 * kSecond;  // what hangs says whom it waits for
  return ask;
}

// The formula: the fold over the hosts of the folds within.
std::vector<std::byte> Formula(const std::vector<uint32_t>& groups, Reduction reduction,
                               const std::vector<std::vector<std::byte>>& inputs) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<std::byte> result(inputs[0].size());
  Reduce(reduction, pointers, groups, result.data(), result.size() / DtypeSize(reduction.dtype));
  return result;
}

struct Expected {
  Call* call;
  std::vector<std::byte> output;
};

// One push_pull on all workers, in an order drawn from the seed.
void PushPullAll(SimulatedJob* job, Ask ask, std::vector<Expected>* all) {
  const size_t bytes = static_cast<size_t>(ask.shape[0]) * DtypeSize(ask.dtype);
  std::vector<std::vector<std::byte>> inputs(job->workers(), std::vector<std::byte>(bytes));
  for (auto& input : inputs) {
    if (ask.dtype == BPS_FLOAT32) {
      const std::vector<float> numbers = job->Numbers(bytes / 4);
      if (bytes != 0) std::memcpy(input.data(), numbers.data(), bytes);
    } else {
      for (std::byte& byte : input) byte = static_cast<std::byte>(job->fabric().random().Next() & 0x3f);
    }
  }
  const std::vector<std::byte> result = Formula(job->options().hosts, {ask.dtype, ask.reduction}, inputs);
  for (uint32_t w = 0; w < job->workers(); ++w) {
    ask.input = inputs[w];
    all->push_back({job->worker(w).Submit(ask), result});
    ASSERT_NE(all->back().call, nullptr);
    if (job->fabric().random().Chance(0.1)) job->RunFor(job->fabric().random().Between(0, 500) * 1000);
  }
}

void ExpectAll(SimulatedJob* job, const std::vector<Expected>& all) {
  ASSERT_TRUE(job->RunUntil(
      [&] { return std::all_of(all.begin(), all.end(), [](const Expected& each) { return each.call->ended(); }); }));
  for (const Expected& each : all) {
    ASSERT_TRUE(each.call->ok()) << each.call->name << ": " << each.call->outcome();
    ASSERT_TRUE(each.call->output == each.output) << each.call->name;
  }
}

// The session works: a tensor of this name, and one of another.
void ExpectGoesOn(SimulatedJob* job, const std::string& name) {
  for (const std::string& tensor : {name, std::string("another")}) {
    for (const size_t size : {size_t{3}, size_t{3000}}) {
      std::vector<Expected> all;
      PushPullAll(job, FloatAsk(tensor, size), &all);
      if (::testing::Test::HasFatalFailure()) return;
      ExpectAll(job, all);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Hosts, SumsAreTheFoldOverTheHostsOfTheFoldsWithin) {
  ForEachSeed(80, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    for (uint32_t w = 0, host = 0, left = job.options().hosts[0]; w < job.workers(); ++w, --left) {
      if (left == 0) left = job.options().hosts[++host];
      EXPECT_EQ(job.worker(w).engine().DescribeStages(),
                job.options().hosts[host] == 1 ? "servers" : "local > servers");
    }
    for (int round = 0; round < 2; ++round) {
      std::vector<Expected> all;
      for (const size_t size : {0, 1, 3, 15, 17, 256, 257, 1000, 5000, 40'000}) {
        PushPullAll(&job, FloatAsk("t" + std::to_string(size), size), &all);
        if (::testing::Test::HasFatalFailure()) return;
      }
      ExpectAll(&job, all);
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

TEST(Hosts, EveryDataTypeAndOperation) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    std::vector<Expected> all;
    for (const uint32_t dtype :
         {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16, BPS_INT8, BPS_UINT8, BPS_INT32, BPS_INT64}) {
      for (const int32_t reduction : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
        Ask ask;
        ask.name = std::to_string(dtype) + "/" + std::to_string(reduction);
        ask.dtype = dtype;
        ask.shape = {seed % 4 < 2 ? 700 : 20};
        ask.reduction = reduction;
        PushPullAll(&job, ask, &all);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    ExpectAll(&job, all);
    if (::testing::Test::HasFatalFailure()) return;
    job.Finish();
  });
}

// A server with hardly any memory drops what comes, and asks for it again.
TEST(Hosts, WithHardlyAnyMemoryAtTheServers) {
  ForEachSeed(30, [](uint64_t seed) {
    JobOptions options = HostsOptions(seed);
    options.servers = options.lanes = 1;
    options.slots_per_peer = 1;
    options.partition_bytes = 4096;
    options.server_memory = 160 * 1024;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    std::vector<Expected> all;
    for (int tensor = 0; tensor < 8; ++tensor) {
      PushPullAll(&job, FloatAsk("t" + std::to_string(tensor), 10'000), &all);
      if (::testing::Test::HasFatalFailure()) return;
    }
    ExpectAll(&job, all);
    if (::testing::Test::HasFatalFailure()) return;
    job.Finish();
  });
}

TEST(Hosts, ABroadcastIsTheRootsInput) {
  ForEachSeed(30, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    std::vector<Expected> all;
    for (uint32_t root = 0; root < job.workers(); ++root) {
      for (const size_t size : {size_t{0}, size_t{1}, size_t{20'000}}) {
        Ask ask = FloatAsk("b" + std::to_string(root) + "." + std::to_string(size), size);
        const std::vector<float> value = job.Numbers(size);
        ask.kind = wire::Operation::kBroadcast;
        ask.root = static_cast<int32_t>(root);
        std::vector<std::byte> bytes(size * 4);
        if (size != 0) std::memcpy(bytes.data(), value.data(), size * 4);
        for (uint32_t w = 0; w < job.workers(); ++w) {
          ask.input = w == root ? bytes : std::vector<std::byte>(size * 4);
          all.push_back({job.worker(w).Submit(ask), bytes});
          ASSERT_NE(all.back().call, nullptr);
        }
      }
    }
    ExpectAll(&job, all);
    if (::testing::Test::HasFatalFailure()) return;
    job.Finish();
  });
}

// All ranks ask the same, but one asks what `twist` makes of it.
void ExpectMismatch(size_t elements, const std::function<void(Ask*)>& twist, const std::vector<std::string>& words) {
  ForEachSeed(60, [&](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    const uint32_t odd = static_cast<uint32_t>(job.fabric().random().Below(job.workers()));
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < job.workers(); ++w) {
      Ask ask = FloatAsk("weights", elements);
      if (w == odd) twist(&ask);
      calls.push_back(job.worker(w).Submit(ask));
      ASSERT_NE(calls.back(), nullptr);
      if (job.fabric().random().Chance(0.3)) job.RunFor(job.fabric().random().Between(0, 100) * kMillisecond);
    }
    ASSERT_TRUE(job.RunUntil([&] { return Ended(calls); }));
    for (const Call* call : calls) {
      EXPECT_EQ(call->outcome().code(), absl::StatusCode::kFailedPrecondition) << call->outcome();
      const std::string text(call->outcome().message());
      EXPECT_THAT(text, HasSubstr("weights"));
      EXPECT_THAT(text, HasSubstr("the ranks disagree: "));
      for (const std::string& word : words) EXPECT_THAT(text, HasSubstr(word));
    }
    for (uint32_t w = 0; w < job.workers(); ++w) EXPECT_TRUE(job.worker(w).failure().ok()) << job.worker(w).failure();
    ExpectGoesOn(&job, "weights");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Hosts, AMismatchOfShapesIsAnErrorOnEveryRank) {
  ExpectMismatch(5000,
                 [](Ask* ask) {
                   ask->shape = {5, 2};
                   ask->input.resize(40);
                 },
                 {"float32, 5000", "float32, 5x2"});
}

TEST(Hosts, AMismatchOfReductionsIsAnErrorOnEveryRank) {
  ExpectMismatch(5000, [](Ask* ask) { ask->reduction = BPS_MAX; }, {"push_pull (sum) of", "push_pull (max) of"});
}

TEST(Hosts, AMismatchOfSmallTensorsIsAnErrorOnEveryRank) {
  ExpectMismatch(10, [](Ask* ask) { ask->dtype = BPS_INT32; }, {"of float32, 10", "of int32, 10"});
}

TEST(Hosts, AMismatchOfPushPullAndBroadcastIsAnErrorOnEveryRank) {
  ExpectMismatch(5000, [](Ask* ask) { ask->kind = wire::Operation::kBroadcast; },
                 {"push_pull (sum) of", "broadcast from rank 0"});
}

TEST(Hosts, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  ForEachSeed(80, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    const size_t elements = seed % 2 == 0 ? 5000 : 5;
    const uint32_t late = static_cast<uint32_t>(job.fabric().random().Below(job.workers()));
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (w == late) continue;
      Ask ask = FloatAsk("weights", elements);
      ask.timeout = 2 * kSecond;
      calls.push_back(job.worker(w).Submit(ask));
    }
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntil([&] { return Ended(calls); }, 10 * kSecond));
    EXPECT_LE(job.fabric().now() - begin, 6 * kSecond);
    for (const Call* call : calls) {
      EXPECT_EQ(call->outcome().code(), absl::StatusCode::kDeadlineExceeded) << call->outcome();
      EXPECT_THAT(std::string(call->outcome().message()), HasSubstr("rank " + std::to_string(late) + " (worker"));
    }
    // It comes too late, and meets the failed round.
    job.RunFor(kSecond);
    Call* call = job.worker(late).Submit(FloatAsk("weights", elements));
    ASSERT_NE(call, nullptr);
    ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
    EXPECT_FALSE(call->ok());
    ExpectGoesOn(&job, "weights");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Hosts, ACancelEndsTheRoundForEverybody) {
  ForEachSeed(100, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    const size_t elements = seed % 2 == 0 ? 40'000 : 20;
    const uint32_t one = static_cast<uint32_t>(job.fabric().random().Below(job.workers()));
    const bool all = job.fabric().random().Chance(0.5);
    std::vector<Call*> calls(job.workers());
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (all || w == one || w % 2 == 0) calls[w] = job.worker(w).Submit(FloatAsk("weights", elements));
    }
    job.RunFor(job.fabric().random().Between(0, 20) * kMillisecond / 4);
    job.worker(one).Cancel(calls[one]);
    job.RunFor(job.fabric().random().Between(0, 20) * kMillisecond);
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (calls[w] == nullptr) calls[w] = job.worker(w).Submit(FloatAsk("weights", elements));
    }
    ASSERT_TRUE(job.RunUntil([&] { return Ended(calls); }));
    EXPECT_TRUE(calls[one]->ok() || calls[one]->outcome().code() == absl::StatusCode::kCancelled)
        << calls[one]->outcome();
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (w == one) continue;
      EXPECT_TRUE(calls[w]->ok() || calls[w]->outcome().code() == absl::StatusCode::kAborted) << calls[w]->outcome();
      if (!calls[w]->ok()) {
        EXPECT_THAT(std::string(calls[w]->outcome().message()), HasSubstr("rank " + std::to_string(one)));
      }
      if (calls[one]->ok()) {
        EXPECT_TRUE(calls[w]->ok()) << calls[w]->outcome();
      }
    }
    ExpectGoesOn(&job, "weights");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

// At any moment, also between the reduction within its host and the push: an error on all others, and no byte moves
// afterwards.
TEST(Hosts, ADeathIsAnErrorOnAllOthersThatNamesIt) {
  ForEachSeed(100, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < job.workers(); ++w) {
      calls.push_back(job.worker(w).Submit(FloatAsk("weights", 100'000)));
      calls.push_back(job.worker(w).Submit(FloatAsk("small", 10)));
    }
    const bool server = job.fabric().random().Chance(0.3);
    const uint32_t dead = static_cast<uint32_t>(job.fabric().random().Below(server ? 1 : job.workers()));
    // What nobody else submits must end, too.
    const uint32_t other = dead == 0 && !server ? 1 : 0;
    Call* alone = job.worker(other).Submit(FloatAsk("alone", 5000));
    job.fabric().Timer(job.fabric().now() + job.fabric().random().Between(0, 5000) * 1000,
                       [&] { job.fabric().Kill(server ? job.server(dead).name() : job.worker(dead).name()); });
    const auto lives = [&](uint32_t w) { return server || w != dead; };
    ASSERT_TRUE(job.RunUntil(
        [&] {
          for (uint32_t w = 0; w < job.workers(); ++w) {
            if (lives(w) && (job.worker(w).failure().ok() || !calls[2 * w]->ended() || !calls[2 * w + 1]->ended())) {
              return false;
            }
          }
          return alone->ended();
        },
        30 * kSecond));
    const std::string name = (server ? "server " : "rank ") + std::to_string(dead);
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (!lives(w)) continue;
      const std::string text(job.worker(w).failure().message());
      EXPECT_THAT(text, AnyOf(HasSubstr(name), HasSubstr("server rank " + std::to_string(dead))));
    }
    job.RunFor(kSecond);
    job.CheckMemory();
  });
}

TEST(Hosts, SessionsOpenAgain) {
  ForEachSeed(30, [](uint64_t seed) {
    JobOptions options = HostsOptions(seed);
    options.linger = 20 * kSecond;
    SimulatedJob job(options);
    for (int life = 0; life < 3; ++life) {
      if (life > 0) job.Reopen();
      ASSERT_TRUE(job.Start());
      ExpectGoesOn(&job, "t");
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

// Cuts that change while a job runs, and with them who owns which part.
TEST(Hosts, CutsMayChange) {
  ForEachSeed(8, [](uint64_t seed) {
    JobOptions options = HostsOptions(seed);
    options.partition_bytes = 0;
    options.slot_bytes = 512 << 10;
    options.server_memory = 64 << 20;
    options.inline_bytes = 1024;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    for (int round = 0; round < 20; ++round) {
      std::vector<Expected> all;
      PushPullAll(&job, FloatAsk("a", 30'000), &all);
      PushPullAll(&job, FloatAsk("b", 5000 + seed), &all);
      ExpectAll(&job, all);
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

// Groups that are not the hosts' define another result, which only the servers can give.
TEST(Hosts, GroupsAcrossHostsAreFoldedByTheServers) {
  JobOptions options = HostsOptions(1);
  options.groups = "none";
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  for (uint32_t w = 0; w < job.workers(); ++w) EXPECT_EQ(job.worker(w).engine().DescribeStages(), "servers");
}

// The same bits whether hosts reduce first or everybody pushes.
TEST(Hosts, WithAndWithoutTheLocalStageTheBitsAreTheSame) {
  ForEachSeed(20, [](uint64_t seed) {
    std::vector<std::vector<std::byte>> outputs[2];
    for (const bool local : {true, false}) {
      JobOptions options = HostsOptions(seed);
      options.local = local;
      SimulatedJob job(options);
      ASSERT_TRUE(job.Start());
      sim::Random random(seed);
      std::vector<Call*> calls;
      for (const uint32_t dtype : {BPS_FLOAT32, BPS_FLOAT16, BPS_BFLOAT16}) {
        for (uint32_t w = 0; w < job.workers(); ++w) {
          Ask ask;
          ask.name = std::to_string(dtype);
          ask.dtype = dtype;
          ask.shape = {3000};
          ask.input.resize(3000 * DtypeSize(dtype));
          for (std::byte& byte : ask.input) byte = static_cast<std::byte>(random.Next() & 0x3f);
          ask.reduction = BPS_AVERAGE;
          calls.push_back(job.worker(w).Submit(ask));
          ASSERT_NE(calls.back(), nullptr);
        }
      }
      ASSERT_TRUE(job.RunUntil([&] { return Ended(calls); }));
      for (const Call* call : calls) {
        ASSERT_TRUE(call->ok()) << call->outcome();
        outputs[local ? 0 : 1].push_back(call->output);
      }
    }
    EXPECT_TRUE(outputs[0] == outputs[1]);
  });
}

}  // namespace
}  // namespace byteps
