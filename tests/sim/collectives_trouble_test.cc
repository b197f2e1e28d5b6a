// A death, a lost link, a cancel in the middle of each kind of collective: every member's operation ends in time, with
// an error that names the rank, or well where it was complete before.

#include <memory>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/worker/collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"
#include "transport_plugins/sim/random.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kWorkers = 4;

// One operation of all ranks, the n-th of what there is.
class Exchange {
 public:
  static constexpr uint64_t kWays = 12;

  Exchange(SimulatedJob* job, uint64_t way, size_t rows) : job_(job) {
    constexpr CollectiveKind kKinds[kWays] = {
        CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll,  CollectiveKind::kReduce,    CollectiveKind::kGather,
        CollectiveKind::kScatter,   CollectiveKind::kBroadcast, CollectiveKind::kSend,
        CollectiveKind::kBarrier,   CollectiveKind::kAllReduce, CollectiveKind::kSparseAllReduce};
    std::vector<int32_t> ranks = {0, 1, 2, 3};
    if (kKinds[way] == CollectiveKind::kSend) ranks = {1, 2};
    inputs_.resize(kWorkers, std::vector<float>(rows, 1));
    for (const int32_t rank : ranks) {
      Collective& asked = all_.emplace_back();
      asked.kind = kKinds[way];
      if (asked.kind == CollectiveKind::kSend && rank == 2) asked.kind = CollectiveKind::kReceive;
      asked.peer = 3 - rank;
      if (asked.kind != CollectiveKind::kSend && asked.kind != CollectiveKind::kReceive) asked.name = "exchange";
      asked.set = *ProcessSet::Make("", ranks, kWorkers);
      asked.dtype = BPS_FLOAT32;
      asked.reduction = way == 10 ? BPS_ADASUM : BPS_SUM;
      asked.root = 1;
      asked.shape = {asked.kind == CollectiveKind::kBarrier ? 0 : static_cast<int64_t>(rows)};
      asked.input = reinterpret_cast<const std::byte*>(inputs_[static_cast<size_t>(rank)].data());
      if (asked.kind == CollectiveKind::kSparseAllReduce) {
        std::vector<int64_t> indices;
        for (size_t i = 0; i < rows; ++i) indices.push_back(static_cast<int64_t>(3 * i));
        asked.all_rows = static_cast<int64_t>(3 * rows);
        asked.packed = std::make_shared<SparseRows>(
            *SparseRows::Pack(BPS_FLOAT32, 4, asked.all_rows, indices.data(), asked.input, rows));
        asked.input = asked.packed->memory.data();
        asked.indices = std::make_shared<SparseIndices>();
      }
      asked.timeout = 600 * kSecond;
      asked.request = std::make_shared<Request>(nullptr, nullptr);
      asked.result = std::make_shared<CollectiveResult>();
    }
  }

  // `but`: a place that does not submit.
  void Submit(size_t but = kWorkers) {
    for (size_t place = 0; place < all_.size(); ++place) {
      if (place == but) continue;
      ASSERT_TRUE(SubmitAt(place).ok());
    }
  }

  absl::Status SubmitAt(size_t place) {
    absl::Status status = job_->worker(rank(place)).Collect(all_[place]);
    if (status.ok()) submitted_.push_back(place);
    return status;
  }

  // This place takes no part in it.
  absl::Status GiveUpAt(size_t place, const std::string& reason) {
    all_[place].given_up = absl::CancelledError(reason);
    all_[place].input = nullptr;
    return SubmitAt(place);
  }

  size_t places() const { return all_.size(); }
  uint32_t rank(size_t place) const { return static_cast<uint32_t>(all_[place].set->ranks()[place]); }
  const Request& request(size_t place) const { return *all_[place].request; }
  const std::vector<size_t>& submitted() const { return submitted_; }
  std::string Describe() const { return all_[0].Describe(); }
  bool Ended(uint32_t but = kWorkers) const {
    for (const size_t place : submitted_) {
      if (rank(place) != but && !request(place).ended()) return false;
    }
    return true;
  }

 private:
  SimulatedJob* const job_;
  std::vector<std::vector<float>> inputs_;
  std::vector<Collective> all_;
  std::vector<size_t> submitted_;
};

JobOptions OptionsOf(uint64_t seed) {
  JobOptions options;
  options.seed = seed;
  options.workers = kWorkers;
  return options;
}

size_t RowsOf(uint64_t seed) { return seed % 3 == 0 ? 20 : seed % 3 == 1 ? 6000 : 400'000; }

TEST(CollectivesTrouble, ADeathEndsThemAllAndIsNamed) {
  ForEachSeed(20 * Exchange::kWays, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    sim::Random random(seed);
    Exchange exchange(&job, seed % Exchange::kWays, RowsOf(seed / Exchange::kWays));
    const size_t victim = random.Below(exchange.places());
    // Before it submits, or somewhere on the way.
    exchange.Submit(random.Chance(0.3) ? victim : kWorkers);
    const uint32_t rank = exchange.rank(victim);
    job.RunFor(random.Between(0, random.Chance(0.5) ? 3 : 300) * kMillisecond);
    job.fabric().Kill("worker" + std::to_string(rank), random.Chance(0.5) ? sim::Death::kNoticed : sim::Death::kSilent);
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntil([&] { return exchange.Ended(rank); })) << exchange.Describe();
    EXPECT_LE(job.fabric().now() - begin, 30 * kSecond);
    for (const size_t place : exchange.submitted()) {
      if (place == victim || exchange.request(place).outcome().ok()) continue;
      EXPECT_THAT(std::string(exchange.request(place).outcome().message()),
                  AnyOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr("worker" + std::to_string(rank))))
          << exchange.Describe();
    }
    job.CheckMemory();
  });
}

// The last rank submits, and so shows its memory, between the moment at which its transport loses another and that at
// which it is told.
TEST(CollectivesTrouble, APeerThatTheTransportHasLostEndsThemByTheCauseOfItsLoss) {
  ForEachSeed(60 * Exchange::kWays, [](uint64_t seed) {
    JobOptions options = OptionsOf(seed);
    options.adverse = false;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    Exchange exchange(&job, seed % Exchange::kWays, 6000);
    const size_t last = 0, victim = 1;
    exchange.Submit(last);
    job.RunFor(50 * kMillisecond);
    const uint32_t rank = exchange.rank(victim);
    job.fabric().Kill("worker" + std::to_string(rank), sim::Death::kNoticed);
    uint64_t events = seed / Exchange::kWays;
    ASSERT_TRUE(job.RunUntil([&] { return events-- == 0; }));
    if (!exchange.SubmitAt(last).ok()) return;  // It knows.
    ASSERT_TRUE(job.RunUntil([&] { return exchange.Ended(rank); })) << exchange.Describe();
    if (exchange.request(last).outcome().ok()) return;  // It needed nothing more of the victim.
    EXPECT_THAT(std::string(exchange.request(last).outcome().message()),
                AllOf(AnyOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr("worker" + std::to_string(rank))),
                      Not(HasSubstr("cannot be shown"))))
        << exchange.Describe();
    job.CheckMemory();
  });
}

TEST(CollectivesTrouble, ALostLinkEndsThemAllAndIsNamed) {
  ForEachSeed(10 * Exchange::kWays, [](uint64_t seed) {
    JobOptions options = OptionsOf(seed);
    // Of adverse endpoints some have one queue for all peers: what is for a lost one fills it, and no member is heard.
    options.adverse = false;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    sim::Random random(seed);
    Exchange exchange(&job, seed % Exchange::kWays, RowsOf(seed / Exchange::kWays));
    const size_t a = random.Below(exchange.places());
    const size_t b = (a + 1 + random.Below(exchange.places() - 1)) % exchange.places();
    exchange.Submit();
    job.RunFor(random.Between(0, random.Chance(0.5) ? 30 : 300) * kMillisecond);
    const std::string one = "worker" + std::to_string(exchange.rank(a)),
                      other = "worker" + std::to_string(exchange.rank(b));
    job.fabric().Cut(one, other);
    const Time begin = job.fabric().now();
    // Connecting has a patience of its own.
    ASSERT_TRUE(job.RunUntil([&] { return exchange.Ended(); }, 300 * kSecond)) << exchange.Describe();
    EXPECT_LE(job.fabric().now() - begin, 120 * kSecond) << exchange.Describe();
    for (const size_t place : exchange.submitted()) {
      if (exchange.request(place).outcome().ok()) continue;
      EXPECT_THAT(std::string(exchange.request(place).outcome().message()), AnyOf(HasSubstr(one), HasSubstr(other)))
          << exchange.Describe() << " on rank " << exchange.rank(place);
    }
    job.CheckMemory();
  });
}

TEST(CollectivesTrouble, ACancelIsToldToAllAndTheNextRoundWorks) {
  ForEachSeed(20 * Exchange::kWays, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    sim::Random random(seed);
    const uint64_t way = seed % Exchange::kWays;
    Exchange exchange(&job, way, RowsOf(seed / Exchange::kWays));
    exchange.Submit();
    job.RunFor(random.Between(0, random.Chance(0.5) ? 3 : 100) * kMillisecond);
    const size_t place = random.Below(exchange.places());
    const uint32_t rank = exchange.rank(place);
    job.worker(rank).Cancel(&exchange.request(place));
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntil([&] { return exchange.Ended(); })) << exchange.Describe();
    EXPECT_LE(job.fabric().now() - begin, 60 * kSecond);
    for (const size_t each : exchange.submitted()) {
      const absl::Status outcome = exchange.request(each).outcome();
      if (outcome.ok()) continue;
      EXPECT_EQ(outcome.code(), each == place ? absl::StatusCode::kCancelled : absl::StatusCode::kAborted) << outcome;
      if (each != place) {
        EXPECT_THAT(std::string(outcome.message()), HasSubstr("rank " + std::to_string(rank)));
        EXPECT_THAT(std::string(outcome.message()), HasSubstr("gave up"));
      }
    }
    Exchange next(&job, way, 100);
    next.Submit();
    ASSERT_TRUE(job.RunUntil([&] { return next.Ended(); })) << next.Describe();
    for (const size_t each : next.submitted()) {
      EXPECT_TRUE(next.request(each).outcome().ok()) << next.request(each).outcome();
    }
    job.Finish();
  });
}

TEST(CollectivesTrouble, ARoundThatIsGivenUpComesBehindTheOneInFlightAndTheNextWorks) {
  ForEachSeed(10 * Exchange::kWays, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    sim::Random random(seed);
    const uint64_t way = seed % Exchange::kWays;
    const auto run = [&](const Exchange& exchange) {
      ASSERT_TRUE(job.RunUntil([&] { return exchange.Ended(); }, 60 * kSecond)) << exchange.Describe();
    };
    Exchange first(&job, way, RowsOf(seed / Exchange::kWays));
    const size_t place = random.Below(first.places());
    const size_t late = (place + 1) % first.places();
    first.Submit(late);
    Exchange second(&job, way, RowsOf(seed / Exchange::kWays));
    const absl::Status given_up = second.GiveUpAt(place, "the step ended half-way");
    ASSERT_TRUE(given_up.ok()) << given_up;
    const bool named = way != 8;  // but messages, of which several are in flight
    if (named) {
      EXPECT_EQ(Exchange(&job, way, 20).SubmitAt(place).code(), absl::StatusCode::kAlreadyExists);
    }
    job.RunFor(random.Between(0, 20) * kMillisecond);
    if (named) {
      EXPECT_FALSE(second.request(place).ended()) << "its turn has not come";
    }
    ASSERT_TRUE(first.SubmitAt(late).ok());
    run(first);
    for (const size_t each : first.submitted()) {
      EXPECT_TRUE(first.request(each).outcome().ok()) << first.request(each).outcome();
    }
    run(second);
    for (size_t each = 0; each < second.places(); ++each) {
      if (each == place) continue;
      ASSERT_TRUE(second.SubmitAt(each).ok());
    }
    run(second);
    for (const size_t each : second.submitted()) {
      const absl::Status outcome = second.request(each).outcome();
      EXPECT_EQ(outcome.code(), each == place ? absl::StatusCode::kCancelled : absl::StatusCode::kAborted)
          << second.Describe() << ": " << outcome;
      EXPECT_THAT(std::string(outcome.message()), HasSubstr("the step ended half-way"));
    }
    Exchange next(&job, way, 100);
    next.Submit();
    run(next);
    for (const size_t each : next.submitted()) {
      EXPECT_TRUE(next.request(each).outcome().ok()) << next.request(each).outcome();
    }
    job.Finish();
  });
}

}  // namespace
}  // namespace byteps
