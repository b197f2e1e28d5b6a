// What `priority` and `credit` share: the most urgent first, at any moment, between two partitions.

#include <optional>
#include <utility>
#include <vector>

#include "core/plugin/plugin_host.h"
#include "core/plugin/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern "C" {
int32_t bps_scheduler_plugin_v1_credit(const bps_plugin_host*, const bps_scheduler_plugin**);
int32_t bps_scheduler_plugin_v1_priority(const bps_plugin_host*, const bps_scheduler_plugin**);
}

namespace byteps {
namespace {

using testing::ElementsAre;

// Six of them are the window of a tensor.
constexpr uint64_t kPart = 64 << 10;

class UrgencyTest : public testing::TestWithParam<bps_scheduler_plugin_fn> {
 protected:
  UrgencyTest() {
    const bps_scheduler_plugin* plugin = nullptr;
    EXPECT_EQ(GetParam()(PluginHost(), &plugin), BPS_OK);
    absl::StatusOr<Scheduler> made = Scheduler::Create(*plugin, BPS_DIRECTION_PUSH, nullptr, nullptr);
    EXPECT_TRUE(made.ok()) << made.status();
    scheduler_.emplace(*std::move(made));
  }

  void Add(uint64_t id, int64_t priority, uint64_t order, uint32_t part, uint32_t peer = 0, uint64_t bytes = 1000) {
    bps_task task = {};
    task.id = id;
    task.tensor = order;
    task.order = order;
    task.part = part;
    task.peer = peer;
    task.bytes = bytes;
    task.priority = priority;
    scheduler_->Enqueue(0, task);
  }

  uint64_t Next(std::vector<bps_budget> budgets = {{0, 1, UINT64_MAX}, {1, 1, UINT64_MAX}}) {
    absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler_->Next(0, budgets);
    EXPECT_TRUE(next.ok()) << next.status();
    if (!next.ok() || !next->has_value()) return 0;
    scheduler_->Sent(0, (*next)->id);
    return (*next)->id;
  }

  std::vector<uint64_t> Drain() {
    std::vector<uint64_t> ids;
    while (const uint64_t id = Next()) ids.push_back(id);
    return ids;
  }

  std::optional<Scheduler> scheduler_;
};

TEST_P(UrgencyTest, LargerPriorityThenDeclarationThenPart) {
  Add(1, -5, 0, 0);
  Add(2, 3, 9, 1);
  Add(3, 3, 9, 0);
  Add(4, 3, 4, 7);
  Add(5, INT64_MAX, 99, 0);
  Add(6, INT64_MIN, 0, 0);
  EXPECT_THAT(Drain(), ElementsAre(5, 4, 3, 2, 1, 6));
}

TEST_P(UrgencyTest, ALateUrgentTensorOvertakesAtThePartitionBoundary) {
  for (uint32_t part = 0; part < 4; ++part) Add(1 + part, 0, 7, part, part % 2);
  EXPECT_EQ(Next(), 1u);  // under way: it is not taken back
  Add(100, 1, 8, 0, 1);
  Add(101, 1, 8, 1, 0);
  EXPECT_THAT(Drain(), ElementsAre(100, 101, 2, 3, 4));
}

// Behind a peer that takes only small tasks now, a small task does not slip past a larger one that is more urgent.
TEST_P(UrgencyTest, TheMostUrgentOfAPeerWaitsForRoomBeforeTheOthers) {
  Add(1, 1, 0, 0, 0, 5000);
  Add(2, 0, 1, 0, 0, 10);
  EXPECT_EQ(Next({{0, 1, 100}}), 0u);
  EXPECT_EQ(Next({{0, 1, 5000}}), 1u);
  EXPECT_EQ(Next({{0, 1, 100}}), 2u);
}

TEST_P(UrgencyTest, WithdrawnHeadsLeaveTheOrderAlone) {
  for (uint64_t id = 1; id <= 1000; ++id) Add(id, static_cast<int64_t>(id % 10), id, 0);
  std::vector<uint64_t> left;
  for (uint64_t id = 1; id <= 1000; ++id) {
    if (id % 3 != 0) {
      EXPECT_TRUE(scheduler_->Withdraw(id));
    }
  }
  for (int64_t priority = 9; priority >= 0; --priority) {
    for (uint64_t id = 3; id <= 1000; id += 3) {
      if (static_cast<int64_t>(id % 10) == priority) left.push_back(id);
    }
  }
  EXPECT_EQ(Drain(), left);
}

// Of a tensor's parts the even ones go to peer 0, which takes nothing now, the odd ones to peer 1.
TEST_P(UrgencyTest, NoPeerRunsFarAheadWithinATensor) {
  for (uint32_t part = 0; part < 40; ++part) Add(100 + part, 0, 1, part, part % 2, kPart);
  const std::vector<bps_budget> second = {{1, 1, UINT64_MAX}};
  for (const uint64_t id : {101, 103, 105, 107, 109}) EXPECT_EQ(Next(second), id);
  // Six wait for the other peer: 0, 2, ... 10.
  EXPECT_EQ(Next(second), 0u);
  Add(7, -1, 2, 0, 1);
  EXPECT_EQ(Next(second), 7u) << "another tensor is not held up";
  EXPECT_EQ(Next({{0, 1, UINT64_MAX}}), 100u);
  EXPECT_EQ(Next(second), 111u);
  EXPECT_EQ(Next(second), 0u);
  std::vector<uint64_t> rest;
  for (uint64_t id = 102; id < 140; ++id) {
    if (id % 2 == 0 || id > 111) rest.push_back(id);
  }
  EXPECT_EQ(Drain(), rest);
}

// As many bytes as six large ones; of very large ones six all the same.
TEST_P(UrgencyTest, SmallPartsMayBeFurtherAhead) {
  const std::vector<bps_budget> second = {{1, 1, UINT64_MAX}};
  uint64_t tensor = 0;
  for (const auto& [bytes, ahead] : {std::pair<uint64_t, uint32_t>{24 << 10, 16}, {40 << 10, 9}, {512 << 10, 6}}) {
    ++tensor;
    for (uint32_t part = 0; part < 40; ++part) Add(tensor * 100 + part, 0, tensor, part, part % 2, bytes);
    uint32_t gone = 0;
    while (Next(second) != 0) ++gone;
    // Those of the first peer are in the window, and the odd ones between them are gone.
    EXPECT_EQ(gone, ahead - 1) << bytes;
    for (uint32_t part = 0; part < 40; ++part) scheduler_->Withdraw(tensor * 100 + part);
  }
}

TEST_P(UrgencyTest, WhatIsUnderWayCountsUntilItHasLeftOrFailed) {
  for (uint32_t part = 0; part < 8; ++part) Add(100 + part, 0, 1, part, 0, kPart);
  const auto start = [&]() -> uint64_t {
    absl::StatusOr<std::optional<Scheduler::Started>> next =
        scheduler_->Next(0, std::vector<bps_budget>{{0, 1, UINT64_MAX}});
    EXPECT_TRUE(next.ok()) << next.status();
    return next.ok() && next->has_value() ? (*next)->id : 0;
  };
  for (uint64_t id = 100; id < 106; ++id) EXPECT_EQ(start(), id);
  EXPECT_EQ(start(), 0u);
  scheduler_->Complete(0, 103, BPS_UNAVAILABLE);
  EXPECT_EQ(start(), 106u);
  EXPECT_EQ(start(), 0u);
  scheduler_->Sent(0, 100);
  scheduler_->Complete(0, 100, BPS_OK);
  EXPECT_EQ(start(), 107u);
}

TEST_P(UrgencyTest, WhatIsWithdrawnMakesRoomInItsTensor) {
  for (uint32_t part = 0; part < 12; ++part) Add(100 + part, 0, 1, part, part % 2, kPart);
  EXPECT_TRUE(scheduler_->Withdraw(109));  // has not been let out
  EXPECT_TRUE(scheduler_->Withdraw(100));
  EXPECT_TRUE(scheduler_->Withdraw(102));
  // Others have come in their place.
  for (const uint64_t id : {104, 106, 108, 110}) EXPECT_EQ(Next({{0, 1, UINT64_MAX}}), id);
  EXPECT_THAT(Drain(), ElementsAre(101, 103, 105, 107, 111));
}

// A step of four minutes: what waits to its end is not old.
TEST_P(UrgencyTest, WithinAStepNothingGrowsOld) {
  constexpr Time kStep = 240 * kSecond;
  constexpr uint64_t kTensors = 2000;
  for (uint32_t round = 1; round <= 3; ++round) {
    const Time begin = round * kStep;
    const auto id_of = [&](uint64_t tensor) { return (uint64_t{round} << 32) + tensor; };
    for (uint64_t tensor = 1; tensor <= kTensors; ++tensor) {
      bps_task task = {};
      task.id = id_of(tensor);
      task.tensor = task.order = tensor;
      task.bytes = 1000;
      task.priority = static_cast<int64_t>(tensor);
      task.round = round;
      scheduler_->Enqueue(begin, task);
    }
    for (uint64_t tensor = kTensors; tensor >= 1; --tensor) {
      const Time now = begin + static_cast<Time>((kTensors - tensor) * (kStep / kTensors));
      absl::StatusOr<std::optional<Scheduler::Started>> next =
          scheduler_->Next(now, std::vector<bps_budget>{{0, 1, UINT64_MAX}});
      ASSERT_TRUE(next.ok() && next->has_value());
      ASSERT_EQ((*next)->id, id_of(tensor)) << "in round " << round;
      scheduler_->Sent(now, (*next)->id);
      scheduler_->Complete(now, (*next)->id, BPS_OK);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedulers, UrgencyTest,
                         testing::Values(bps_scheduler_plugin_v1_priority, bps_scheduler_plugin_v1_credit),
                         [](const testing::TestParamInfo<bps_scheduler_plugin_fn>& param) {
                           return param.index == 0 ? "priority" : "credit";
                         });

}  // namespace
}  // namespace byteps
