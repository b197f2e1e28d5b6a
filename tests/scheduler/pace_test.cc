// The pace of the link: learned while nothing is held, held while something urgent may come, and never the reason why
// nothing goes.

#include "scheduler_plugins/credit/pace.h"

#include <algorithm>
#include <cstdint>
#include <deque>

#include "gtest/gtest.h"

namespace byteps::credit {
namespace {

constexpr uint64_t kPart = 64 << 10;

// Workers that hand in rounds of tensors, the later ones more urgent, over a link of `rate`. Results come home one
// after the other, `others` behind what the link has carried: others push the same later.
class Job {
 public:
  static constexpr int64_t kOthers = 30'000'000;

  explicit Job(double rate, int64_t others = kOthers) : rate_(rate), behind_(others) {}

  enum class Parts { kInTurns, kInARow };  // how tensors go: two that interrupt one another, or one after the other

  // One round of tensors of so many parts each. Returns how long it took.
  int64_t Round(uint32_t parts, bool urgent = true, Parts order = Parts::kInTurns, uint64_t tensors = 2) {
    const int64_t begin = now_;
    ++round_;
    for (uint64_t tensor = 0; tensor < tensors; ++tensor) {
      for (uint32_t part = 0; part < parts; ++part) {
        bps_task task = {};
        task.struct_size = sizeof task;
        task.tensor = tensor;
        task.part = part;
        task.round = round_;
        task.bytes = kPart;
        task.priority = urgent ? static_cast<int64_t>(tensor) : 0;
        pace_.Arrived(task, waiting_ > 0);
        ++waiting_;
      }
    }
    most_ahead_ = 0;
    while (waiting_ > 0 || !home_.empty()) {
      if (waiting_ > 0 && pace_.OpensAt() <= now_) {
        --waiting_;
        pace_.Started(now_, kPart, order == Parts::kInTurns ? waiting_ % 2 : waiting_ / parts);
        link_until_ = std::max(link_until_, now_) + static_cast<int64_t>(static_cast<double>(kPart) * 1e9 / rate_);
        home_.push_back(link_until_ + behind_);
        most_ahead_ = std::max(most_ahead_, link_until_ - now_);
        continue;
      }
      const int64_t opens = waiting_ > 0 ? pace_.OpensAt() : INT64_MAX;
      now_ = std::min(opens, home_.empty() ? INT64_MAX : home_.front());
      if (!home_.empty() && home_.front() == now_) {
        home_.pop_front();
        // The last ones come when nothing waits any more: they say nothing of the link.
        pace_.Home(now_, kPart, waiting_ > 0 || home_.size() > 1);
        // What it tells comes back with the results, where others have told no less.
        if (const double told = std::min(pace_.rate(), others_); told > 0) pace_.Agreed(static_cast<uint64_t>(told));
      }
    }
    return now_ - begin;
  }

  const Pace& pace() const { return pace_; }
  bool learns() const { return pace_.learns(); }
  // How far the link was behind what was handed over, in the last round.
  int64_t most_ahead() const { return most_ahead_; }
  void SetRate(double rate) { rate_ = rate; }
  // The least that any other worker tells.
  void SetOthers(double rate) { others_ = rate; }

 private:
  Pace pace_;
  double rate_;
  const int64_t behind_;
  double others_ = 1e18;
  uint32_t round_ = 0;
  int64_t now_ = 1;
  int64_t link_until_ = 0;
  int64_t most_ahead_ = 0;
  uint32_t waiting_ = 0;
  std::deque<int64_t> home_;
};

constexpr double kRate = 24e6;
constexpr double kPartTime = static_cast<double>(kPart) * 1e9 / kRate;

void Rounds(Job* job, uint64_t rounds) {
  for (uint64_t i = 0; i < rounds; ++i) job->Round(200);
}

TEST(Pace, IsLearnedFromWhatComesHomeAndKeepsTheLinkNearlyFull) {
  Job job(kRate);
  const int64_t free = job.Round(200);
  EXPECT_EQ(job.pace().state(), Pace::State::kLearn);
  EXPECT_GT(static_cast<double>(job.most_ahead()), 300 * kPartTime) << "nothing is held back while it learns";
  Rounds(&job, Pace::kLearnRounds);
  EXPECT_EQ(job.pace().state(), Pace::State::kHold);
  EXPECT_NEAR(job.pace().rate(), kRate, 0.01 * kRate);
  EXPECT_NEAR(job.pace().pace(), Pace::kGain * job.pace().rate(), 2);
  const int64_t held = job.Round(200);
  EXPECT_LE(static_cast<double>(job.most_ahead()), 3 * kPartTime) << "what comes now waits for three parts at most";
  EXPECT_LE(static_cast<double>(held), 1.08 * static_cast<double>(free));
}

// Nothing interrupts it, so the link need not stand still for the sake of what might.
TEST(Pace, ALargeTensorInARowGetsTheWholeLink) {
  Job job(kRate);
  const int64_t free = job.Round(200);
  Rounds(&job, 8);
  const int64_t in_turns = job.Round(200);
  const int64_t in_a_row = job.Round(200, true, Job::Parts::kInARow);
  EXPECT_GE(static_cast<double>(in_turns), 1.025 * static_cast<double>(free));
  EXPECT_LE(static_cast<double>(in_a_row), 1.01 * static_cast<double>(free));
}

TEST(Pace, HoweverLargeATensorIsLittleOfItWaits) {
  Job job(kRate);
  Rounds(&job, 8);
  job.Round(4000, true, Job::Parts::kInARow);
  EXPECT_LE(static_cast<double>(job.most_ahead()), 3 * kPartTime + 10e6);
}

// Each has its megabyte at the pace, in which it makes up for next to nothing of what the one before has gained.
TEST(Pace, NorDoLargeTensorsOneAfterTheOtherAddUp) {
  Job job(kRate);
  Rounds(&job, 8);
  for (const uint32_t parts : {20, 60, 140, 200}) {
    job.Round(parts, true, Job::Parts::kInARow, 20);
    EXPECT_LE(static_cast<double>(job.most_ahead()), 3 * kPartTime + 10e6) << parts;
  }
}

// The same rounds on all workers, told by the number of the round alone.
TEST(Pace, IsLearnedInTheFirstRoundsAndEverMoreRarely) {
  Job job(kRate);
  for (uint32_t round = 1; round <= 3 * 64 + 1; ++round) {
    job.Round(4);
    const bool learns = round <= 4 || round / 2 == 8 || round / 2 == 16 || round / 2 % 32 == 0;
    EXPECT_EQ(job.learns(), learns) << round;
  }
}

// The link is never behind by more than the part that it carries and the one handed over before that has left: two.
// Hundreds of tensors of half a megabyte are no run, however many parts go in a row: as one run they would get the
// whole lead of a large tensor, kMostLead, nearly four parts more.
TEST(Pace, TensorsOfAFewPartsAreNoRun) {
  Job job(kRate);
  Rounds(&job, 8);
  const uint32_t parts = 7;
  static_assert(parts * kPart < Pace::kLongRun / 2);
  ASSERT_GT(static_cast<double>(Pace::kMostLead), 3 * kPartTime);
  for (int i = 0; i < 8; ++i) {
    job.Round(parts, true, Job::Parts::kInARow, 300);
    if (job.pace().state() == Pace::State::kLearn) continue;
    EXPECT_LE(static_cast<double>(job.most_ahead()), 3 * kPartTime);
  }
}

TEST(Pace, IsNoneWhereNothingWasEverMoreUrgent) {
  Job job(kRate);
  for (uint64_t i = 0; i <= 2 * Pace::kLearnRounds; ++i) job.Round(200, false);
  EXPECT_EQ(job.pace().OpensAt(), INT64_MIN);
  EXPECT_GT(static_cast<double>(job.most_ahead()), 300 * kPartTime);
}

TEST(Pace, IsNoneOnFastLinks) {
  Job job(2 * Pace::kFastest);
  Rounds(&job, 2 * Pace::kLearnRounds + 1);
  EXPECT_EQ(job.pace().state(), Pace::State::kHold);
  EXPECT_EQ(job.pace().OpensAt(), INT64_MIN);
}

TEST(Pace, FollowsALinkThatHasBecomeFasterOrSlower) {
  Job job(kRate);
  Rounds(&job, 8);
  for (const double factor : {3.0, 0.5}) {
    job.SetRate(factor * kRate);
    Rounds(&job, Pace::kProbeEvery + 2);
    EXPECT_NEAR(job.pace().rate(), factor * kRate, 0.01 * factor * kRate);
  }
}

// While nothing urgent comes, tasks go faster than the clock of the link. When something urgent comes again, no peer
// waits for that clock.
TEST(Pace, WhatWentFreelyIsNotHeldAgainstWhatFollows) {
  Job job(kRate);
  Rounds(&job, 8);
  job.SetRate(3 * kRate);
  for (uint64_t i = 0; i < Pace::kUrgentRounds + 2; ++i) job.Round(200, false);
  EXPECT_EQ(job.pace().OpensAt(), INT64_MIN);
  EXPECT_LE(static_cast<double>(job.Round(200)), 1.1 * 400 * kPartTime);
  EXPECT_NE(job.pace().OpensAt(), INT64_MIN);
}

// A little less than last time is the same link, a little disturbed.
TEST(Pace, DoesNotSinkByProbing) {
  Job job(kRate);
  Rounds(&job, 8);
  const double pace = job.pace().pace();
  for (int i = 0; i < 20; ++i) {
    job.SetRate(pace);
    Rounds(&job, Pace::kProbeEvery);
  }
  EXPECT_NEAR(job.pace().pace(), pace, 2);
}

// Nothing is learned again for long: a round in which others used the link must not count so long.
TEST(Pace, OneDisturbedRoundOfAProbeIsNotBelieved) {
  for (const uint64_t disturbed : {Pace::kProbeEvery, Pace::kProbeEvery + 1}) {
    Job job(kRate);
    for (uint64_t round = 1; round <= Pace::kProbeEvery + 3; ++round) {
      job.SetRate(round == disturbed ? 0.3 * kRate : kRate);
      job.Round(200);
    }
    EXPECT_NEAR(job.pace().rate(), kRate, 0.01 * kRate) << disturbed;
  }
}

// The first steps of a trainer are slow and fill no window. The first one that does is not believed alone.
TEST(Pace, IsNeverThatOfOneRoundAlone) {
  Job job(0.8 * kRate);
  for (uint64_t round = 0; round < 2 * Pace::kLearnRounds; ++round) job.Round(20);
  job.Round(200);
  job.SetRate(kRate);
  job.Round(200);
  EXPECT_EQ(job.pace().state(), Pace::State::kLearn);
  job.Round(20);
  EXPECT_NEAR(job.pace().rate(), kRate, 0.01 * kRate);
  EXPECT_EQ(job.pace().state(), Pace::State::kHold);
}

// Nor is it believed when no other round fills a window for long; the first step with one may have been the slowest.
TEST(Pace, IsNeverThatOfTheOnlyRoundThatMeasures) {
  Job job(0.5 * kRate);
  job.Round(200);
  job.SetRate(kRate);
  for (uint64_t round = 0; round < 3 * Pace::kProbeEvery; ++round) job.Round(20);
  EXPECT_EQ(job.pace().rate(), 0);
  EXPECT_EQ(job.pace().state(), Pace::State::kLearn);
}

// A pace that is too slow costs time: one round tells that the link carries more.
TEST(Pace, IsRaisedByOneRoundAlone) {
  Job job(0.5 * kRate);
  Rounds(&job, 8);
  EXPECT_NEAR(job.pace().rate(), 0.5 * kRate, 0.01 * kRate);
  job.SetRate(kRate);
  for (uint64_t round = 9; round <= Pace::kFirstProbe + 2; ++round) {
    job.Round(round == Pace::kFirstProbe + 1 ? 200 : 20);
  }
  EXPECT_NEAR(job.pace().rate(), kRate, 0.01 * kRate);
}

// All hold the pace of the slowest, whatever each has learned.
TEST(Pace, IsThatOfAllWorkers) {
  Job job(kRate);
  job.SetOthers(0.8 * kRate);
  Rounds(&job, 8);
  EXPECT_NEAR(job.pace().rate(), kRate, 0.01 * kRate);
  EXPECT_NEAR(job.pace().pace(), Pace::kGain * 0.8 * kRate, 2);
}

// One that has learned nothing holds what the others hold.
TEST(Pace, NeedNotBeLearnedHere) {
  Pace pace;
  bps_task task = {};
  for (task.round = 1; task.round <= Pace::kLearnRounds; ++task.round) pace.Arrived(task, true);
  task.priority = 1;
  pace.Arrived(task, true);
  pace.Started(1, kPart, task.tensor);
  EXPECT_EQ(pace.OpensAt(), INT64_MIN);
  pace.Agreed(static_cast<uint64_t>(kRate));
  EXPECT_EQ(pace.state(), Pace::State::kHold);
  EXPECT_EQ(pace.rate(), 0);
  for (int i = 0; i < 3; ++i) pace.Started(1, kPart, task.tensor);
  EXPECT_GT(pace.OpensAt(), static_cast<int64_t>(kPartTime));
}

// A peer that tells nonsense keeps no other waiting for long.
TEST(Pace, IsNeverFarBelowWhatComesHome) {
  Job job(kRate);
  job.SetOthers(1);
  Rounds(&job, 8);
  EXPECT_NEAR(job.pace().pace(), Pace::kGain * 0.5 * kRate, 0.01 * kRate);
}

// The clock knows a link of the rate agreed upon, however fast the link is; where all has come home nothing waits for
// it.
TEST(Pace, WhatIsHomeHasLeftTheLink) {
  Job job(kRate, 0);
  const int64_t free = job.Round(200);
  job.SetOthers(0.6 * kRate);
  Rounds(&job, 8);
  EXPECT_NEAR(job.pace().pace(), Pace::kGain * 0.6 * kRate, 2);
  EXPECT_LE(static_cast<double>(job.Round(200)), 1.05 * static_cast<double>(free));
  EXPECT_LE(static_cast<double>(job.most_ahead()), 3 * kPartTime) << "and no more is ahead of the link for it";
}

// Brings a pace into force that has learned nothing here: others tell theirs.
void PutInForce(Pace* pace) {
  bps_task task = {};
  for (task.round = 1; task.round <= Pace::kLearnRounds; ++task.round) pace->Arrived(task, true);
  task.priority = 1;
  pace->Arrived(task, true);
  pace->Agreed(static_cast<uint64_t>(kRate));
}

TEST(Pace, NorIsWhatIsLostOnTheLink) {
  Pace pace;
  PutInForce(&pace);
  for (int i = 0; i < 10; ++i) pace.Started(1, kPart, 1);
  EXPECT_GT(pace.OpensAt(), 1);
  for (int i = 0; i < 10; ++i) pace.Lost(1, kPart);
  EXPECT_LE(pace.OpensAt(), 1);
}

TEST(Pace, WhatIsAwayStaysSoWhicheverComesOrGoes) {
  Pace pace;
  PutInForce(&pace);
  for (int i = 0; i < 10; ++i) pace.Started(1, kPart, 1);
  pace.Forget();
  EXPECT_EQ(pace.OpensAt(), INT64_MIN);
  PutInForce(&pace);
  for (int i = 0; i < 10; ++i) pace.Home(1, kPart, true);
  for (int i = 0; i < 10; ++i) pace.Started(1, kPart, 1);
  EXPECT_GT(pace.OpensAt(), 1);
  for (int i = 0; i < 10; ++i) pace.Home(1, kPart, true);
  EXPECT_LE(pace.OpensAt(), 1);
}

// The tensor whose rounds are counted comes no more: another one takes its place, and the pace still follows the link.
TEST(Pace, CountsAnotherTensorWhenTheFirstOneIsGone) {
  Pace pace;
  bps_task task = {};
  task.tensor = 7;
  task.round = 1;
  pace.Arrived(task, false);
  int64_t now = 1;
  for (uint64_t round = 0; round < 60; ++round) {
    for (uint32_t part = 0; part < 256; ++part) {
      task.tensor = 8;
      task.round = static_cast<uint32_t>(round + 1);
      task.part = part;
      task.priority = part == 128 ? 1 : 0;
      pace.Arrived(task, true);
      pace.Started(now, kPart, task.tensor);
      now += static_cast<int64_t>(kPartTime);
      pace.Home(now, kPart, true);
      if (pace.rate() > 0) pace.Agreed(static_cast<uint64_t>(pace.rate()));
    }
  }
  EXPECT_EQ(pace.state(), Pace::State::kHold);
  EXPECT_NEAR(pace.rate(), kRate, 0.01 * kRate);
}

// A server that had no memory for a part has it sent again: that is no new round. Nor is any other order of parts.
TEST(Pace, CountsRoundsAndNotParts) {
  Pace pace;
  bps_task task = {};
  int64_t now = 1;
  for (uint32_t round = 1; round <= Pace::kLearnRounds; ++round) {
    for (uint32_t part = 0; part < 1024; ++part) {
      task.round = round;
      task.part = part % 5;
      pace.Arrived(task, true);
      pace.Started(now, kPart, task.tensor);
      now += static_cast<int64_t>(kPartTime);
      pace.Home(now, kPart, true);
      ASSERT_EQ(pace.rate(), 0) << "round " << round << ", task " << part;
    }
  }
  ++task.round;
  pace.Arrived(task, true);
  EXPECT_NEAR(pace.rate(), kRate, 0.01 * kRate);
}

// A library that does not tell rounds: the workers could not agree on when to learn.
TEST(Pace, IsNoneWhereTheRoundIsNotTold) {
  Pace pace;
  bps_task task = {};
  int64_t now = 1;
  for (uint32_t part = 0; part < 64 * 1024; ++part) {
    task.part = part % 256;
    task.priority = part % 2;
    pace.Arrived(task, true);
    pace.Started(now, kPart, task.tensor);
    now += static_cast<int64_t>(kPartTime);
    pace.Home(now, kPart, true);
    if (pace.rate() > 0) pace.Agreed(static_cast<uint64_t>(pace.rate()));
    ASSERT_EQ(pace.OpensAt(), INT64_MIN) << part;
  }
}

}  // namespace
}  // namespace byteps::credit
