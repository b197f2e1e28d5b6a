#include "scheduler_plugins/credit/scheduler.h"

#include <optional>
#include <string_view>
#include <vector>

#include "core/plugin/plugin_host.h"
#include "core/plugin/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_scheduler_plugin_v1_credit(const bps_plugin_host*, const bps_scheduler_plugin**);

namespace byteps::credit {
namespace {

using testing::HasSubstr;

bps_task TaskOf(uint64_t id, uint32_t peer, uint64_t bytes, int64_t priority = 0) {
  bps_task task = {};
  task.id = id;
  task.peer = peer;
  task.bytes = bytes;
  task.priority = priority;
  task.order = id;
  return task;
}

const std::vector<bps_budget> kRoom = {{0, 1, UINT64_MAX}, {1, 1, UINT64_MAX}};

// How many go before it says no.
size_t Burst(Scheduler* scheduler) {
  uint64_t id = 0;
  size_t count = 0;
  while (scheduler->Next(0, kRoom.data(), kRoom.size(), &id)) ++count;
  return count;
}

TEST(CreditSchedulerTest, PartitionsCountAsTheLargest) {
  Scheduler scheduler(Bound{Bound::Kind::kPartitions, 3}, 0, true);
  for (uint64_t id = 1; id <= 10; ++id) scheduler.Enqueue(0, TaskOf(id, id % 2, 1000));
  EXPECT_EQ(Burst(&scheduler), 3u);
  scheduler.Sent(0, 1);
  EXPECT_EQ(Burst(&scheduler), 1u);
  bps_scheduler_stats stats = {};
  scheduler.Stats(&stats);
  EXPECT_EQ(stats.credit_bytes, 3000u);
  EXPECT_EQ(stats.in_flight_bytes, 3000u);
}

TEST(CreditSchedulerTest, BytesAndNone) {
  Scheduler bytes(Bound{Bound::Kind::kBytes, 2500}, 0, true);
  Scheduler none(Bound{Bound::Kind::kUnbounded, 0}, 0, true);
  for (uint64_t id = 1; id <= 10; ++id) {
    bytes.Enqueue(0, TaskOf(id, 0, 1000));
    none.Enqueue(0, TaskOf(id, 0, 1 << 30));
  }
  EXPECT_EQ(Burst(&bytes), 2u);
  EXPECT_EQ(Burst(&none), 10u);
}

TEST(CreditSchedulerTest, ATaskLargerThanTheCreditGoesAlone) {
  Scheduler scheduler(Bound{Bound::Kind::kBytes, 10}, 0, true);
  for (uint64_t id = 1; id <= 3; ++id) scheduler.Enqueue(0, TaskOf(id, 0, 1000));
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(Burst(&scheduler), 1u);
    scheduler.Sent(0, id);
  }
}

// What fits but is less urgent does not eat the credit that the most urgent waits for.
TEST(CreditSchedulerTest, SmallOnesDoNotKeepALargeUrgentOneWaiting) {
  Scheduler scheduler(Bound{Bound::Kind::kBytes, 1000}, 0, true);
  scheduler.Enqueue(0, TaskOf(1, 0, 600, 9));
  scheduler.Enqueue(0, TaskOf(2, 0, 600, 8));
  scheduler.Enqueue(0, TaskOf(3, 1, 100, 7));
  EXPECT_EQ(Burst(&scheduler), 1u);
  scheduler.Sent(0, 1);
  EXPECT_EQ(Burst(&scheduler), 2u);
}

// Tuned: a peer that never says that anything has left keeps its own credit, and no other peer's.
TEST(CreditSchedulerTest, ASlowPeerHoldsUpNoOther) {
  Scheduler scheduler(Bound{}, 0, true);
  uint64_t id = 1;
  for (; id <= 100; ++id) scheduler.Enqueue(0, TaskOf(id, 0, 512 << 10, 1));  // urgent, to the slow one
  for (; id <= 200; ++id) scheduler.Enqueue(0, TaskOf(id, 1, 512 << 10));
  size_t to_slow = 0, to_fast = 0;
  uint64_t next = 0;
  for (int64_t now = 0; now < 200; ++now) {
    while (scheduler.Next(now * 1000, kRoom.data(), kRoom.size(), &next)) {
      ++(next <= 100 ? to_slow : to_fast);
      if (next > 100) scheduler.Sent(now * 1000 + 500, next);
    }
  }
  EXPECT_EQ(to_slow, Path::kInitialCredit / (512 << 10));
  EXPECT_EQ(to_fast, 100u);
}

struct OneValue : PluginConfig {
  explicit OneValue(const char* with_text) : text(with_text) {}
  const char* PluginValue(std::string_view name) const override {
    return name == "BYTEPS_SCHEDULING_CREDIT" ? text : nullptr;
  }
  const char* text;
};

TEST(CreditSchedulerTest, AWrongBoundIsAnErrorThatNamesIt) {
  const bps_scheduler_plugin* plugin = nullptr;
  ASSERT_EQ(bps_scheduler_plugin_v1_credit(PluginHost(), &plugin), BPS_OK);
  for (const char* text : {"-4", "x"}) {
    const OneValue config(text);
    const absl::Status status = byteps::Scheduler::Create(*plugin, BPS_DIRECTION_PUSH, &config, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string("\"credit\" could not be created: BYTEPS_SCHEDULING_CREDIT=") + text));
  }
}

// How many of a burst of urgent tasks go at once, after rounds in which results came home over a link of 24 MB/s.
size_t BurstAfterRounds(int32_t direction) {
  constexpr uint64_t kBytes = 64 << 10;
  constexpr int64_t kTime = 2'730'666;
  constexpr uint32_t kTasks = 256;
  const bps_scheduler_plugin* plugin = nullptr;
  EXPECT_EQ(bps_scheduler_plugin_v1_credit(PluginHost(), &plugin), BPS_OK);
  absl::StatusOr<byteps::Scheduler> scheduler = byteps::Scheduler::Create(*plugin, direction, nullptr, nullptr);
  EXPECT_TRUE(scheduler.ok()) << scheduler.status();
  uint64_t id = 0;
  int64_t now = 0;
  const auto next = [&] {
    const absl::StatusOr<std::optional<byteps::Scheduler::Started>> task = scheduler->Next(now, kRoom);
    EXPECT_TRUE(task.ok()) << task.status();
    return task.ok() ? *task : std::nullopt;
  };
  const auto add = [&](uint32_t round) {
    for (uint32_t i = 0; i < kTasks; ++i) {
      bps_task task = TaskOf(++id, 0, kBytes, i);
      task.tensor = task.order = i;
      task.round = round;
      scheduler->Enqueue(now, task);
    }
  };
  for (uint32_t round = 1; round < 9; ++round) {
    add(round);
    while (scheduler->queued() > 0) {
      now = std::max(now, scheduler->WakeAt(now) == kNever ? now : scheduler->WakeAt(now)) + kTime;
      const std::optional<byteps::Scheduler::Started> task = next();
      if (!task.has_value()) continue;
      scheduler->Sent(now, task->id);
      scheduler->Complete(now, task->id, BPS_OK);
      if (scheduler->Rate() > 0) scheduler->Agreed(now, scheduler->Rate());
    }
  }
  add(9);
  size_t went = 0;
  while (const std::optional<byteps::Scheduler::Started> task = next()) {
    scheduler->Sent(now, task->id);
    ++went;
  }
  return went;
}

// Within a host there is no link, and nothing waits for one.
TEST(CreditSchedulerTest, ThePaceIsThatOfALink) {
  EXPECT_LT(BurstAfterRounds(BPS_DIRECTION_PUSH), 8u);
  EXPECT_EQ(BurstAfterRounds(BPS_DIRECTION_LOCAL), 256u);
}

// Bursts over a link on which a task takes kTakes. restart.h has the rule; here it is in force.
class CreditRestartTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 40 << 10;
  static constexpr int64_t kTakes = 1'700'000;  // nanoseconds

  void Enqueue(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i, ++last_) scheduler_.Enqueue(now_, TaskOf(last_ + 1, last_ % 2, kBytes));
  }

  // Answers all that may go now, and says how many did.
  size_t Go(size_t most = SIZE_MAX) {
    uint64_t id = 0;
    size_t count = 0;
    for (; count < most && scheduler_.Next(now_, kRoom.data(), kRoom.size(), &id); ++count) {
      scheduler_.Sent(now_, id);  // the kernel has it
      gone_.push_back(id);
    }
    return count;
  }

  void Complete(size_t index, int64_t takes, int32_t outcome = BPS_OK) {
    scheduler_.Complete(now_ += takes, gone_[index], outcome);
  }

  // As long as others wait, the link is as fast as results come home.
  void Learn() {
    Enqueue(495);
    EXPECT_EQ(Go(450), 450u) << "nothing is known of the link";
    for (size_t i = 0; i < 450; ++i) {
      Complete(i, kTakes);
      if (i % 10 != 9) continue;
      EXPECT_EQ(Go(1), 1u) << "there was no silence";
    }
    for (size_t i = 450; i < gone_.size(); ++i) Complete(i, 10 * kTakes);
    gone_.clear();
  }

  void BeSilent() { now_ += 1'000'000'000; }

  Scheduler scheduler_{Bound{}, 0, true};
  int64_t now_ = 1;
  uint64_t last_ = 0;
  std::vector<uint64_t> gone_;  // and not completed
};

TEST_F(CreditRestartTest, BehindSilenceTasksGoAsTheLinkCarriesThem) {
  Learn();
  BeSilent();
  Enqueue(100);
  EXPECT_LE(Go(), 3u);
  EXPECT_GT(scheduler_.WakeAt(), now_);
  const int64_t begin = now_;
  while (gone_.size() < 100) {
    ASSERT_LT(scheduler_.WakeAt(), now_ + 2 * kTakes);
    now_ = scheduler_.WakeAt();
    Go();
  }
  EXPECT_GT(now_ - begin, 50'000'000);
  EXPECT_LT(now_ - begin, 70'000'000) << "held back behind the beginning of the burst";
}

TEST_F(CreditRestartTest, WhatIsKnownOfTheLinkGoesWithThePeers) {
  Learn();
  BeSilent();
  scheduler_.Peers(nullptr, 0);
  Enqueue(100);
  EXPECT_EQ(Go(), 100u);
}

// Nor is a link known by tasks that ended without a result,
TEST_F(CreditRestartTest, WhatFailsTellsNothingOfTheLink) {
  Enqueue(495);
  Go(450);
  for (size_t i = 0; i < 450; ++i) Complete(i, kTakes, BPS_UNAVAILABLE);
  Go();
  for (size_t i = 450; i < gone_.size(); ++i) Complete(i, kTakes, BPS_UNAVAILABLE);
  BeSilent();
  Enqueue(100);
  EXPECT_EQ(Go(), 100u);
}

// or by results that came home while nothing waited any more, whichever call took the last one from the queue.
TEST_F(CreditRestartTest, WhatIsWithdrawnDoesNotWait) {
  Enqueue(451);
  Go(450);
  scheduler_.Withdraw(451);
  for (size_t i = 0; i < 450; ++i) Complete(i, kTakes);
  BeSilent();
  Enqueue(100);
  EXPECT_EQ(Go(), 100u);
}

}  // namespace
}  // namespace byteps::credit
