// Ranks that run out of data: random amounts of work on each rank, against the sums with zeros; and what fails
// meanwhile.

#include "core/worker/collectives/joins.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "absl/strings/str_cat.h"
#include "core/reduce/reduce.h"
#include "core/worker/collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/gather.h"
#include "tests/sim/simulated_job.h"
#include "transport_plugins/sim/random.h"

namespace byteps {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Through servers, within one host, or both.
JobOptions OptionsOf(uint64_t seed, uint32_t least = 1) {
  constexpr uint32_t kWorkers[] = {1, 2, 3, 4, 7};
  JobOptions options;
  options.seed = seed;
  options.workers = std::max(least, kWorkers[seed % std::size(kWorkers)]);
  const uint64_t way = seed / std::size(kWorkers) % 3;
  if (way == 1) {
    options.workers_per_host = options.workers;
    options.servers = 0;
    options.local = true;
  } else if (way == 2 && options.workers > 1) {
    options.hosts = {options.workers - 1, 1};
    options.local = true;
  }
  return options;
}

// One operation of all that are not out of data, or of a set of them.
struct Work {
  enum class Kind { kPushPull, kAllReduce, kReduce, kReduceScatter, kBarrier };
  Kind kind = Kind::kPushPull;
  std::string name;
  int32_t reduction = BPS_SUM;
  uint64_t match = 0;
  std::shared_ptr<ProcessSet> set;
  std::vector<std::vector<float>> inputs;  // by rank
  std::vector<float> expected;             // the whole
};

// A rank's way through one share of work, to the join at its end.
struct Rank {
  size_t next = 0;  // share
  std::vector<size_t> left;
  std::vector<std::pair<size_t, Call*>> calls;
  std::vector<std::pair<size_t, Collective>> collectives;
  std::shared_ptr<Request> join;
  std::vector<std::shared_ptr<int32_t>> last;  // of each join
};

class JoinProgram {
 public:
  JoinProgram(SimulatedJob* job, uint64_t seed) : job_(job), random_(seed), ranks_(job->workers()) {}

  void Run(size_t shares) {
    for (size_t share = 0; share < shares; ++share) Draw(share);
    ASSERT_TRUE(job_->RunUntil([&] { return Advance(); }, 600 * kSecond));
    for (size_t share = 0; share < shares; ++share) {
      for (uint32_t rank = 0; rank < job_->workers(); ++rank) {
        EXPECT_EQ(*ranks_[rank].last[share], *ranks_[0].last[share]) << "share " << share << ", rank " << rank;
      }
      // Who came last, came with the most work or as much; at least it is a rank.
      EXPECT_LT(*ranks_[0].last[share], static_cast<int32_t>(job_->workers()));
      EXPECT_GE(*ranks_[0].last[share], 0);
    }
  }

 private:
  void Draw(size_t share) {
    const uint32_t n = job_->workers();
    std::vector<Work>& all = shares_.emplace_back();
    std::vector<size_t>& amounts = amounts_.emplace_back(n);
    const size_t most = 1 + random_.Below(12);
    size_t longest = 0;
    for (size_t& amount : amounts) longest = std::max(longest, amount = random_.Below(most + 1));
    for (size_t i = 0; i < longest; ++i) {
      Work& work = all.emplace_back();
      work.kind = static_cast<Work::Kind>(random_.Chance(0.5) ? 0 : random_.Below(5));
      // Names come again, also in the next share; each share has some of its own.
      work.name = "w" + std::to_string(random_.Below(4)) + (random_.Chance(0.3) ? "." + std::to_string(share) : "");
      work.reduction = random_.Chance(0.5) ? BPS_SUM : BPS_AVERAGE;
      work.match = random_.Below(3);
      std::vector<int32_t> members;
      for (uint32_t rank = 0; rank < n; ++rank) {
        if (work.kind == Work::Kind::kPushPull || random_.Chance(0.7)) members.push_back(static_cast<int32_t>(rank));
      }
      if (members.empty()) members.push_back(0);
      work.set = *ProcessSet::Make("", members, n);
      const size_t size = random_.Chance(0.2) ? 0 : random_.Below(random_.Chance(0.7) ? 100 : 9000);
      std::vector<const void*> pointers;
      work.inputs.resize(n);
      for (const int32_t rank : members) {
        std::vector<float>& input = work.inputs[static_cast<size_t>(rank)];
        input = amounts[static_cast<size_t>(rank)] > i ? job_->Numbers(size) : std::vector<float>(size);
        pointers.push_back(input.data());
      }
      work.expected.resize(size);
      Reduce({BPS_FLOAT32, work.reduction}, pointers, {}, work.expected.data(), size);
    }
  }

  // As far as it is each rank's turn. True: all have come through all shares.
  bool Advance() {
    bool over = true;
    for (uint32_t rank = 0; rank < job_->workers(); ++rank) over &= AdvanceRank(rank);
    return over;
  }

  bool AdvanceRank(uint32_t rank) {
    Rank& self = ranks_[rank];
    if (self.join != nullptr) {
      if (!self.join->ended()) return false;
      EXPECT_TRUE(self.join->outcome().ok()) << self.join->outcome();
      self.join.reset();
      ++self.next;
    }
    if (self.next == shares_.size()) return Check(rank);
    if (self.last.size() == self.next) {
      // A share begins: what this rank has of it, in its own order (of one name: in the order of all).
      self.last.push_back(std::make_shared<int32_t>(-1));
      for (size_t i = 0; i < amounts_[self.next][rank]; ++i) {
        if (shares_[self.next][i].set->PlaceOf(rank)) self.left.push_back(i);
      }
    }
    if (random_.Chance(0.5)) return false;
    if (!self.left.empty()) {
      SubmitOne(rank);
      return false;
    }
    // Some wait for what they have in flight, some do not.
    self.join = std::make_shared<Request>(nullptr, nullptr);
    const absl::Status status = job_->worker(rank).Join({self.join, 600 * kSecond, self.last.back().get()});
    EXPECT_TRUE(status.ok()) << status;
    absl::Status refused;
    Ask ask;
    ask.name = "refused";
    ask.shape = {0};
    if (!self.join->ended() && job_->worker(rank).engine().collectives()->joins().joined()) {
      EXPECT_EQ(job_->worker(rank).Submit(ask, &refused), nullptr);
      EXPECT_THAT(std::string(refused.message()), HasSubstr("this rank has joined"));
    }
    return false;
  }

  void SubmitOne(uint32_t rank) {
    Rank& self = ranks_[rank];
    const size_t pick = random_.Below(self.left.size());
    size_t at = pick;
    const auto& work_of = [&](size_t index) -> const Work& { return shares_[self.next][self.left[index]]; };
    for (size_t earlier = 0; earlier < pick; ++earlier) {
      if (work_of(earlier).name == work_of(pick).name) {
        at = earlier;
        break;
      }
    }
    const Work& work = work_of(at);
    absl::Status refused;
    if (work.kind == Work::Kind::kPushPull) {
      Call* call = job_->worker(rank).PushPull(work.name, work.inputs[rank], work.reduction, work.match);
      if (call == nullptr) return;  // one of this name is in flight
      self.calls.emplace_back(Index(self.next, self.left[at]), call);
    } else {
      Collective asked;
      constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllReduce,
                                           CollectiveKind::kReduce, CollectiveKind::kReduceScatter,
                                           CollectiveKind::kBarrier};
      asked.kind = kKinds[static_cast<size_t>(work.kind)];
      asked.name = work.name;
      asked.set = work.set;
      asked.reduction = work.reduction;
      asked.match = work.match;
      asked.dtype = asked.kind == CollectiveKind::kBarrier ? BPS_UINT8 : BPS_FLOAT32;
      asked.shape = {asked.kind == CollectiveKind::kBarrier ? 0 : static_cast<int64_t>(work.expected.size())};
      asked.root = work.set->ranks().back();
      asked.input = reinterpret_cast<const std::byte*>(work.inputs[rank].data());
      asked.timeout = 600 * kSecond;
      asked.request = std::make_shared<Request>(nullptr, nullptr);
      asked.result = std::make_shared<CollectiveResult>();
      const absl::Status status = job_->worker(rank).Collect(asked);
      if (absl::IsAlreadyExists(status)) return;
      ASSERT_TRUE(status.ok()) << status;
      self.collectives.emplace_back(Index(self.next, self.left[at]), asked);
    }
    self.left.erase(self.left.begin() + static_cast<ptrdiff_t>(at));
  }

  static size_t Index(size_t share, size_t index) { return share * 1000 + index; }

  // False: some have not ended.
  bool Check(uint32_t rank) {
    Rank& self = ranks_[rank];
    for (const auto& [index, call] : self.calls) {
      if (!call->ended()) return false;
    }
    for (const auto& [index, asked] : self.collectives) {
      if (!asked.request->ended()) return false;
    }
    for (const auto& [index, call] : self.calls) {
      const Work& work = shares_[index / 1000][index % 1000];
      EXPECT_TRUE(call->ok()) << work.name << ": " << call->outcome();
      EXPECT_EQ(call->Output<float>(), work.expected) << work.name << " on rank " << rank;
    }
    for (const auto& [index, asked] : self.collectives) {
      const Work& work = shares_[index / 1000][index % 1000];
      EXPECT_TRUE(asked.request->outcome().ok()) << asked.Describe() << ": " << asked.request->outcome();
      if (!asked.request->outcome().ok()) continue;
      const CollectiveResult& result = *asked.result;
      const auto* data = reinterpret_cast<const float*>(result.data);
      const std::vector<float> got(data, data + result.bytes / sizeof(float));
      std::vector<float> expected = work.expected;
      if (asked.kind == CollectiveKind::kBarrier) expected.clear();
      if (asked.kind == CollectiveKind::kReduce && asked.root != static_cast<int32_t>(rank)) expected.clear();
      if (asked.kind == CollectiveKind::kReduceScatter) {
        auto first = expected.begin();
        const size_t place = *work.set->PlaceOf(rank);
        for (size_t i = 0; i < place; ++i) first += result.splits[i];
        expected.assign(first, first + result.splits[place]);
      }
      EXPECT_EQ(got, expected) << asked.Describe() << " on rank " << rank;
    }
    self.calls.clear();
    self.collectives.clear();
    return true;
  }

  SimulatedJob* const job_;
  sim::Random random_;
  std::vector<std::vector<Work>> shares_;
  std::vector<std::vector<size_t>> amounts_;  // of each share, by rank
  std::vector<Rank> ranks_;
};

TEST(Joins, RanksOutOfDataCountAsZeros) {
  ForEachSeed(600, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    JoinProgram(&job, seed).Run(4);
    job.Finish();
  });
}

std::shared_ptr<Request> JoinOn(SimulatedJob* job, uint32_t rank, Time timeout = 600 * kSecond) {
  auto request = std::make_shared<Request>(nullptr, nullptr);
  EXPECT_TRUE(job->worker(rank).Join({request, timeout, nullptr}).ok());
  return request;
}

bool AllEnded(const std::vector<std::shared_ptr<Request>>& requests) {
  return std::all_of(requests.begin(), requests.end(), [](const auto& each) { return each->ended(); });
}

Collective GatherOf(SimulatedJob* job, const std::vector<float>& input) {
  Collective asked;
  asked.kind = CollectiveKind::kAllGather;
  asked.set = ProcessSet::All(job->workers());
  asked.name = "gather";
  asked.dtype = BPS_FLOAT32;
  asked.shape = {static_cast<int64_t>(input.size())};
  asked.input = reinterpret_cast<const std::byte*>(input.data());
  asked.timeout = 600 * kSecond;
  asked.request = std::make_shared<Request>(nullptr, nullptr);
  asked.result = std::make_shared<CollectiveResult>();
  return asked;
}

// Operations that have no result with zeros, before and after the others hear of the join; then all join, and the same
// names work.
TEST(Joins, WhatHasNoResultWithZerosFailsEverywhereAndWorksAgainAfterwards) {
  ForEachSeed(150, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed, 3));
    ASSERT_TRUE(job.Start());
    sim::Random random(seed);
    const uint32_t out = job.workers() - 1;
    const std::vector<float> input = job.Numbers(random.Chance(0.5) ? 20 : 5000);
    std::vector<std::shared_ptr<Request>> joins = {JoinOn(&job, out)};
    if (random.Chance(0.5)) job.RunFor(100 * kMillisecond);
    std::vector<Call*> calls;
    std::vector<Collective> gathers;
    for (uint32_t rank = 0; rank < out; ++rank) {
      Ask ask;
      ask.name = "shared";
      ask.shape = {static_cast<int64_t>(input.size())};
      ask.input.resize(input.size() * sizeof(float));
      if (seed % 2 == 0) {
        ask.kind = wire::Operation::kBroadcast;
        ask.root = static_cast<int32_t>(seed / 2 % job.workers());
      } else {
        ask.reduction = BPS_MAX;
      }
      calls.push_back(job.worker(rank).Submit(ask));
      ASSERT_NE(calls.back(), nullptr);
      gathers.push_back(GatherOf(&job, input));
      ASSERT_TRUE(job.worker(rank).Collect(gathers.back()).ok());
    }
    ASSERT_TRUE(job.RunUntil([&] {
      return std::all_of(calls.begin(), calls.end(), [](const Call* each) { return each->ended(); }) &&
             std::all_of(gathers.begin(), gathers.end(), [](const auto& each) { return each.request->ended(); });
    }));
    const std::string who = "rank " + std::to_string(out);
    for (const Call* each : calls) {
      EXPECT_FALSE(each->outcome().ok());
      EXPECT_THAT(std::string(each->outcome().message()), HasSubstr(who + " has joined"));
    }
    for (const Collective& each : gathers) {
      const std::string text(each.request->outcome().message());
      EXPECT_EQ(each.request->outcome().code(), absl::StatusCode::kFailedPrecondition) << text;
      EXPECT_THAT(text, HasSubstr("has joined"));
      EXPECT_THAT(text, HasSubstr(who));
      EXPECT_THAT(text, HasSubstr("all_gather has no result with that"));
    }
    for (uint32_t rank = 0; rank < out; ++rank) joins.push_back(JoinOn(&job, rank));
    ASSERT_TRUE(job.RunUntil([&] { return AllEnded(joins); }));
    for (const auto& each : joins) EXPECT_TRUE(each->outcome().ok()) << each->outcome();
    calls.clear();
    for (uint32_t rank = 0; rank < job.workers(); ++rank) calls.push_back(job.worker(rank).PushPull("shared", input));
    std::vector<Collective> again;
    for (uint32_t rank = 0; rank < job.workers(); ++rank) {
      again.push_back(GatherOf(&job, input));
      ASSERT_TRUE(job.worker(rank).Collect(again.back()).ok());
    }
    ASSERT_TRUE(job.RunUntilEnded(calls));
    for (const Call* each : calls) EXPECT_TRUE(each->ok()) << each->outcome();
    ASSERT_TRUE(job.RunUntil([&] {
      return std::all_of(again.begin(), again.end(), [](const auto& each) { return each.request->ended(); });
    }));
    for (const Collective& each : again) EXPECT_TRUE(each.request->outcome().ok()) << each.request->outcome();
    job.Finish();
  });
}

// Rank r joins behind r + 1 operations, of which each but the first needs the zeros of those that have joined. So the
// last rank is the last, also where rank 0 hears of the one before only afterwards.
TEST(Joins, TheLastIsTheOneThatWentOnWhenTheOthersHadJoined) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options = OptionsOf(0);
    options.seed = seed;
    options.workers = 3 + seed % 3;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const uint32_t size = job.workers();
    const std::string late = absl::StrCat("worker", size - 2);
    std::vector<std::vector<Call*>> calls(size);
    std::vector<int32_t> last(size, -1);
    std::vector<std::shared_ptr<Request>> joins(size);
    ASSERT_TRUE(job.RunUntil([&] {
      for (uint32_t rank = 0; rank < size; ++rank) {
        if (joins[rank] != nullptr || (!calls[rank].empty() && !calls[rank].back()->ended())) continue;
        if (calls[rank].size() <= rank) {
          calls[rank].push_back(job.worker(rank).PushPull("w", std::vector<float>(10, 1)));
          continue;
        }
        if (rank == size - 2) job.fabric().Cut("worker0", late);
        joins[rank] = std::make_shared<Request>(nullptr, nullptr);
        const absl::Status joined = job.worker(rank).Join({joins[rank], 600 * kSecond, &last[rank]});
        EXPECT_TRUE(joined.ok()) << joined;
      }
      return joins.back() != nullptr;
    }));
    job.RunFor(50 * kMillisecond);
    job.fabric().Heal("worker0", late);
    ASSERT_TRUE(job.RunUntil([&] { return AllEnded(joins); }));
    for (uint32_t rank = 0; rank < size; ++rank) {
      for (const Call* call : calls[rank]) EXPECT_TRUE(call->ok()) << call->outcome();
      EXPECT_TRUE(joins[rank]->outcome().ok()) << joins[rank]->outcome();
      EXPECT_EQ(last[rank], static_cast<int32_t>(size) - 1) << "rank " << rank;
    }
    job.Finish();
  });
}

TEST(Joins, ADeadlineNamesWhoHasNotJoinedAndTheRankStaysJoined) {
  ForEachSeed(30, [](uint64_t seed) {
    JobOptions options = OptionsOf(seed);
    options.workers = 3;
    options.workers_per_host = 1;
    options.hosts.clear();
    options.local = false;
    options.servers = 1;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    std::vector<std::shared_ptr<Request>> joins = {JoinOn(&job, 0, 2 * kSecond), JoinOn(&job, 2)};
    const auto second = std::make_shared<Request>(nullptr, nullptr);
    EXPECT_EQ(job.worker(0).Join({second, kSecond, nullptr}).code(), absl::StatusCode::kAlreadyExists);
    ASSERT_TRUE(job.RunUntil([&] { return joins[0]->ended(); }));
    EXPECT_EQ(joins[0]->outcome().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(joins[0]->outcome().message()), HasSubstr("not joined by rank 1"));
    // It goes on counting as zeros, no member waiting for it.
    const std::vector<float> input = job.Numbers(2000);
    Call* call = job.worker(1).PushPull("w", input);
    ASSERT_TRUE(job.RunUntilEnded({call}));
    EXPECT_TRUE(call->ok()) << call->outcome();
    EXPECT_EQ(call->Output<float>(), SimulatedJob::Sum({std::vector<float>(2000), input, std::vector<float>(2000)}));
    // A cancel is no way out either.
    joins[0] = JoinOn(&job, 0);
    job.worker(0).Cancel(joins[0].get());
    ASSERT_TRUE(job.RunUntil([&] { return joins[0]->ended(); }));
    EXPECT_EQ(joins[0]->outcome().code(), absl::StatusCode::kCancelled);
    joins[0] = JoinOn(&job, 0);
    joins.push_back(JoinOn(&job, 1));
    ASSERT_TRUE(job.RunUntil([&] { return AllEnded(joins); }));
    for (const auto& each : joins) EXPECT_TRUE(each->outcome().ok()) << each->outcome();
    job.Finish();
  });
}

// All ranks that have data give rounds up, and nothing of these names follows before all have joined.
TEST(Joins, RoundsThatAreGivenUpCountForThoseThatHaveJoined) {
  ForEachSeed(60, [](uint64_t seed) {
    JobOptions options = OptionsOf(seed, 2);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const uint32_t size = job.workers();
    std::vector<std::shared_ptr<Request>> joins = {JoinOn(&job, size - 1)};
    job.RunFor(200 * kMillisecond);  // all know of it
    const auto rounds = static_cast<size_t>(job.fabric().random().Between(1, 40));
    std::vector<Call*> calls;
    std::vector<std::unique_ptr<Gather>> gathers;
    for (uint32_t rank = 0; rank + 1 < size; ++rank) {
      for (size_t i = 0; i < rounds; ++i) {
        Ask ask;
        ask.name = "staged";
        ask.shape = {300};
        ask.input.resize(300 * sizeof(float));
        ask.given_up = absl::CancelledError("for a test");
        calls.push_back(job.worker(rank).Submit(ask));
        ASSERT_NE(calls.back(), nullptr);
        gathers.push_back(std::make_unique<Gather>("among workers", size, 3));
        Collective asked = gathers.back()->asked();
        asked.given_up = absl::CancelledError("for a test");
        ASSERT_TRUE(job.worker(rank).Collect(asked).ok());
      }
    }
    ASSERT_TRUE(job.RunUntilEnded(calls));
    for (uint32_t rank = 0; rank + 1 < size; ++rank) joins.push_back(JoinOn(&job, rank));
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntil([&] { return AllEnded(joins); }));
    EXPECT_LE(job.fabric().now() - begin, 2 * kSecond) << "it counts them at once";
    calls.clear();
    std::vector<std::unique_ptr<Gather>> together;
    for (uint32_t rank = 0; rank < size; ++rank) {
      calls.push_back(job.worker(rank).PushPull("staged", std::vector<float>(300, 1)));
      together.push_back(std::make_unique<Gather>("among workers", size, 3));
      ASSERT_TRUE(job.worker(rank).Collect(together.back()->asked()).ok());
    }
    ASSERT_TRUE(job.RunUntilEnded(calls));
    for (const Call* call : calls) {
      ASSERT_TRUE(call->ok()) << call->outcome();
      EXPECT_EQ(call->Output<float>(), std::vector<float>(300, static_cast<float>(size)));
    }
    ASSERT_TRUE(job.RunUntil([&] {
      return std::all_of(together.begin(), together.end(), [](const auto& each) { return each->request().ended(); });
    }));
    for (const auto& each : together) EXPECT_TRUE(each->request().outcome().ok()) << each->request().outcome();
    job.Finish();
  });
}

// One name, or one of a set, of which every rank submits or gives up some rounds of its own.
struct Sequence {
  enum class Way { kStages, kPeers, kBoth };
  std::string name;
  Way way;
  std::shared_ptr<ProcessSet> set;
};

// What was submitted.
struct Asked {
  std::vector<std::unique_ptr<Gather>> gathers;
  std::vector<Call*> calls;

  // nullptr: an operation of this name is in flight.
  const Request* Submit(SimulatedJob* job, uint32_t rank, const Sequence& sequence, bool staged,
                        const absl::Status& given_up, Time timeout) {
    if (staged) {
      Ask ask;
      ask.name = sequence.name;
      ask.shape = {300};
      ask.input.resize(300 * sizeof(float));
      ask.timeout = timeout;
      ask.given_up = given_up;
      Call* call = job->worker(rank).Submit(ask);
      if (call == nullptr) return nullptr;
      calls.push_back(call);
      return call->request.get();
    }
    gathers.push_back(std::make_unique<Gather>(sequence.name, job->workers(), 3, timeout));
    Collective asked = gathers.back()->asked();
    asked.set = sequence.set;
    asked.given_up = given_up;
    const absl::Status status = job->worker(rank).Collect(asked);
    if (status.ok()) return asked.request.get();
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    gathers.pop_back();
    return nullptr;
  }
  bool ended() const {
    return std::all_of(gathers.begin(), gathers.end(), [](const auto& each) { return each->request().ended(); }) &&
           std::all_of(calls.begin(), calls.end(), [](const Call* each) { return each->ended(); });
  }
};

// Each rank gives rounds up, or its operations fail, before it joins and before it hears that others have; nothing of
// these names follows before all have joined. So each rank has come to some of the rounds, and none to all: behind the
// join all have counted them.
TEST(Joins, RoundsThatFailedBeforeTheOthersJoinedCountForThem) {
  ForEachSeed(150, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed, 3));
    ASSERT_TRUE(job.Start());
    sim::Random& random = job.fabric().random();
    const uint32_t size = job.workers();
    const std::shared_ptr<ProcessSet> all = ProcessSet::All(size);
    const std::vector<Sequence> sequences = {
        {"stages", Sequence::Way::kStages, all},
        {"peers", Sequence::Way::kPeers, all},
        {"both", Sequence::Way::kBoth, all},
        {"set", Sequence::Way::kPeers, *ProcessSet::Make("", std::vector<int32_t>{0, 2}, size)},
    };
    for (int repeat = 0; repeat < 2; ++repeat) {
      SCOPED_TRACE("repeat " + std::to_string(repeat));
      Asked before;
      std::vector<uint64_t> left(size);
      for (uint64_t& each : left) each = random.Below(8);
      std::vector<std::shared_ptr<Request>> joins(size);
      for (uint32_t joined = 0; joined < size;) {
        const auto rank = static_cast<uint32_t>(random.Below(size));
        if (joins[rank] != nullptr) continue;
        if (left[rank]-- == 0) {
          joins[rank] = JoinOn(&job, rank);
          ++joined;
        } else if (const Sequence& sequence = sequences[random.Below(sequences.size())]; sequence.set->PlaceOf(rank)) {
          const bool staged =
              sequence.way == Sequence::Way::kStages || (sequence.way == Sequence::Way::kBoth && random.Chance(0.5));
          const absl::Status why = random.Chance(0.6) ? absl::CancelledError("for a test") : absl::OkStatus();
          before.Submit(&job, rank, sequence, staged, why, random.Between(100, 1000) * kMillisecond);
        }
        if (random.Chance(0.5)) job.RunFor(random.Between(0, 300) * kMillisecond);
      }
      ASSERT_TRUE(job.RunUntil([&] { return AllEnded(joins) && before.ended(); }));
      for (const auto& each : joins) ASSERT_TRUE(each->outcome().ok()) << each->outcome();
      for (int way = 0; way < 2; ++way) {
        Asked after;
        for (const Sequence& sequence : sequences) {
          const bool staged =
              sequence.way == Sequence::Way::kStages || (sequence.way == Sequence::Way::kBoth && way == 0);
          for (const int32_t rank : sequence.set->ranks()) {
            ASSERT_NE(after.Submit(&job, static_cast<uint32_t>(rank), sequence, staged, {}, 600 * kSecond), nullptr);
          }
        }
        ASSERT_TRUE(job.RunUntil([&] { return after.ended(); }, 20 * kSecond));
        for (const Call* each : after.calls) ASSERT_TRUE(each->ok()) << each->outcome();
        for (const auto& each : after.gathers) {
          ASSERT_TRUE(each->request().outcome().ok()) << each->request().outcome();
        }
      }
    }
    job.Finish();
  });
}

TEST(Joins, ADeathIsToldToThoseThatWait) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options = OptionsOf(3);  // four, through a server
    options.seed = seed;
    options.workers = 4;
    options.hosts.clear();
    options.local = false;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    std::vector<std::shared_ptr<Request>> joins = {JoinOn(&job, 0), JoinOn(&job, 2), JoinOn(&job, 3)};
    if (seed % 3 == 0) job.RunFor(50 * kMillisecond);
    // One that has joined, or the one that works.
    const std::string victim = seed % 2 == 0 ? "worker1" : "worker3";
    job.fabric().Kill(victim, seed % 4 < 2 ? sim::Death::kNoticed : sim::Death::kSilent);
    if (seed % 2 != 0) joins.pop_back();
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntil([&] { return AllEnded(joins); }));
    EXPECT_LE(job.fabric().now() - begin, 30 * kSecond);
    for (const auto& each : joins) {
      if (victim == "worker3" && each == joins.back() && joins.size() == 3) continue;
      EXPECT_FALSE(each->outcome().ok());
      EXPECT_THAT(std::string(each->outcome().message()), HasSubstr(victim));
    }
  });
}

}  // namespace
}  // namespace byteps
