// Several hosts, some with several workers: these reduce among themselves, and one of them speaks for all at the
// servers.

#include <functional>
#include <string>
#include <vector>

#include "core/reduce/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/exchanges.h"
#include "tests/sim/expect_mismatch.h"
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

// One that travels with its offer, and one that is read where it is.
const std::vector<size_t> kSizes = {3, 3000};

constexpr double kPauses = 0.1;

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
      Exchanges exchanges(&job, kPauses);
      for (const size_t size : {0, 1, 3, 15, 17, 256, 257, 1000, 5000, 40'000}) {
        exchanges.Sum("t" + std::to_string(size), size);
      }
      exchanges.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

TEST(Hosts, EveryDataTypeAndOperation) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job, kPauses);
    exchanges.EveryDataTypeAndReduction({seed % 4 < 2 ? 700 : 20}, job.options().hosts);
    exchanges.Check();
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
    Exchanges exchanges(&job, kPauses);
    for (int tensor = 0; tensor < 8; ++tensor) exchanges.Sum("t" + std::to_string(tensor), 10'000);
    exchanges.Check();
    if (::testing::Test::HasFatalFailure()) return;
    job.Finish();
  });
}

TEST(Hosts, ABroadcastIsTheRootsInput) {
  ForEachSeed(30, [](uint64_t seed) {
    SimulatedJob job(HostsOptions(seed));
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job);
    exchanges.Broadcasts({0, 1, 20'000});
    exchanges.Check();
    if (::testing::Test::HasFatalFailure()) return;
    job.Finish();
  });
}

void ExpectMismatches(size_t elements, const std::function<void(Ask*)>& twist, const Words& words) {
  ForEachSeed(60, [&](uint64_t seed) {
    const auto all = [&](uint32_t) {
      Words each = words;
      each.push_back("the ranks disagree: ");
      return each;
    };
    ExpectMismatch(HostsOptions(seed), FloatAsk("weights", elements), twist, all, kSizes);
  });
}

TEST(Hosts, AMismatchOfShapesIsAnErrorOnEveryRank) {
  ExpectMismatches(5000,
                   [](Ask* ask) {
                     ask->shape = {5, 2};
                     ask->input.resize(40);
                   },
                   {"float32, 5000", "float32, 5x2"});
}

TEST(Hosts, AMismatchOfReductionsIsAnErrorOnEveryRank) {
  ExpectMismatches(5000, [](Ask* ask) { ask->reduction = BPS_MAX; }, {"push_pull (sum) of", "push_pull (max) of"});
}

TEST(Hosts, AMismatchOfSmallTensorsIsAnErrorOnEveryRank) {
  ExpectMismatches(10, [](Ask* ask) { ask->dtype = BPS_INT32; }, {"of float32, 10", "of int32, 10"});
}

TEST(Hosts, AMismatchOfPushPullAndBroadcastIsAnErrorOnEveryRank) {
  ExpectMismatches(5000, [](Ask* ask) { ask->kind = wire::Operation::kBroadcast; },
                   {"push_pull (sum) of", "broadcast from rank 0"});
}

TEST(Hosts, AMismatchOfNumbersIsAnErrorOnEveryRank) {
  for (const size_t elements : {10, 5000}) {
    ExpectMismatches(elements, [](Ask* ask) { ask->match = 7; }, {"scaling or number"});
  }
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
    ASSERT_TRUE(job.RunUntilEnded(calls, 10 * kSecond));
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
    ExpectGoesOn(&job, "weights", kSizes);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Hosts, ACancelEndsTheRoundForAll) {
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
    ASSERT_TRUE(job.RunUntilEnded(calls));
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
    ExpectGoesOn(&job, "weights", kSizes);
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
    // What no other member submits must end, too.
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
      ExpectGoesOn(&job, "t", kSizes);
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
      Exchanges exchanges(&job, kPauses);
      exchanges.Sum("a", 30'000);
      exchanges.Sum("b", 5000 + seed);
      exchanges.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

// As many hosts as a large job has: they all meet, the sums are right, and a death is an error on all others that names
// it.
TEST(Hosts, SixtyFourOfThem) {
  ForEachSeed(2, [](uint64_t seed) {
    JobOptions options = HostsOptions(seed);
    options.hosts.assign(64, 2);
    options.workers = 128;
    options.servers = 16;
    options.lanes = 1;
    options.copy_refused = false;
    options.server_memory = 64 << 20;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job, kPauses);
    for (const size_t size : {3, 5000}) exchanges.Sum("t" + std::to_string(size), size);
    exchanges.Check();
    if (::testing::Test::HasFatalFailure()) return;

    std::vector<Call*> calls;
    const uint32_t dead = 77;
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (w != dead) calls.push_back(job.worker(w).Submit(FloatAsk("weights", 5000)));
    }
    job.fabric().Kill(job.worker(dead).name());
    ASSERT_TRUE(job.RunUntilEnded(calls, 30 * kSecond));
    for (const Call* call : calls) {
      EXPECT_THAT(std::string(call->outcome().message()), HasSubstr("rank " + std::to_string(dead)));
    }
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

// The same bits whether hosts reduce first or every member pushes.
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
      ASSERT_TRUE(job.RunUntilEnded(calls));
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
