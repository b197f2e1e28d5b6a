#include "core/plugin/scheduled_tasks.h"

#include <cstdint>
#include <map>
#include <random>

#include "gtest/gtest.h"

namespace byteps {
namespace {

bps_task TaskOf(uint64_t id) {
  bps_task task = {};
  task.id = id;
  task.bytes = 3 * id;
  task.earliest = -static_cast<int64_t>(id);
  task.peer = static_cast<uint32_t>(id % 7);
  return task;
}

TEST(ScheduledTasksTest, AnIdIsThereOnce) {
  ScheduledTasks tasks;
  EXPECT_EQ(tasks.Find(UINT64_MAX), nullptr);
  ASSERT_NE(tasks.Add(TaskOf(UINT64_MAX)), nullptr);
  EXPECT_EQ(tasks.Add(TaskOf(UINT64_MAX)), nullptr);
  EXPECT_EQ(tasks.Find(UINT64_MAX - 1), nullptr);
  tasks.Erase(UINT64_MAX);
  EXPECT_EQ(tasks.Find(UINT64_MAX), nullptr);
  EXPECT_NE(tasks.Add(TaskOf(UINT64_MAX)), nullptr);
}

TEST(ScheduledTasksTest, RandomHistories) {
  using State = ScheduledTasks::State;
  std::mt19937_64 random(1);
  ScheduledTasks tasks;
  std::map<uint64_t, State> expected;
  for (uint64_t step = 0; step < 40000; ++step) {
    const uint64_t id = step / 2 + random() % 500;
    const auto found = expected.find(id);
    ScheduledTasks::Entry* entry = tasks.Find(id);
    ASSERT_EQ(entry == nullptr, found == expected.end());
    if (entry == nullptr) {
      entry = tasks.Add(TaskOf(id));
      ASSERT_NE(entry, nullptr);
      ASSERT_EQ(entry->state, State::kQueued);
      expected[id] = State::kQueued;
      continue;
    }
    ASSERT_EQ(entry->bytes, 3 * id);
    ASSERT_EQ(entry->earliest, -static_cast<int64_t>(id));
    ASSERT_EQ(entry->peer, id % 7);
    ASSERT_EQ(entry->state, found->second);
    if (random() % 2 == 0) {
      entry->state = found->second = State::kSent;
    } else {
      tasks.Erase(id);
      expected.erase(found);
    }
  }
  size_t seen = 0;
  tasks.ForEach([&](const ScheduledTasks::Entry& entry) {
    ++seen;
    ASSERT_EQ(entry.bytes % 3, 0u);
    ASSERT_TRUE(expected.contains(entry.bytes / 3));
    EXPECT_EQ(entry.state, expected.at(entry.bytes / 3));
  });
  EXPECT_EQ(seen, expected.size());
}

}  // namespace
}  // namespace byteps
