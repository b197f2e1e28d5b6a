// A program and a plugin compiled against the frozen headers of version 1.0, in the hands of this library.

#include <optional>
#include <vector>

#include "abi/byteps.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/plugin/plugin_registry.h"
#include "core/worker/api/read_args.h"
#include "gtest/gtest.h"
#include "tests/abi/v1_0_program.h"

namespace byteps {
namespace {

// What the library makes of a struct of 1.0.
template <typename T>
T Read(const void* args) {
  absl::StatusOr<T> read = ReadArgs(static_cast<const T*>(args));
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? *read : T{};
}

TEST(CompatibilityTest, ArgumentsOfVersion10AreUnderstood) {
  const auto open = Read<bps_open_args>(v1_0_open_args());
  EXPECT_STREQ(open.coordinator, "host:9000");
  EXPECT_STREQ(open.job, "job");
  EXPECT_EQ(open.has_place, 1);
  EXPECT_EQ(open.local_size, 4);
  EXPECT_EQ(open.timeout_ms, 1234);
  EXPECT_EQ(open.log_user, v1_0_open_args());

  const auto declare = Read<bps_declare_args>(v1_0_declare_args());
  EXPECT_STREQ(declare.name, "w");
  EXPECT_EQ(declare.shape[1], 3);
  EXPECT_EQ(declare.dtype, BPS_BFLOAT16);
  EXPECT_EQ(declare.staleness, 5);

  const auto push_pull = Read<bps_push_pull_args>(v1_0_push_pull_args());
  EXPECT_EQ(push_pull.priority, -7);
  EXPECT_EQ(push_pull.op, BPS_PRODUCT);
  EXPECT_EQ(push_pull.output_device, BPS_CPU);
  EXPECT_EQ(push_pull.timeout_ms, 99);
  EXPECT_EQ(push_pull.user, v1_0_push_pull_args());

  const auto broadcast = Read<bps_broadcast_args>(v1_0_broadcast_args());
  EXPECT_EQ(broadcast.root, 3);
  EXPECT_EQ(broadcast.user, v1_0_broadcast_args());

  const auto barrier = Read<bps_barrier_args>(v1_0_barrier_args());
  EXPECT_STREQ(barrier.name, "b");
  EXPECT_EQ(barrier.timeout_ms, 97);
}

TEST(CompatibilityTest, InfoOfVersion10IsFilled) {
  bps_info info = BPS_INFO_INIT;
  info.generation = 41;
  ASSERT_TRUE(WriteOut(info, static_cast<bps_info*>(v1_0_info())).ok());
  EXPECT_EQ(v1_0_info_generation(), 41u);
}

TEST(CompatibilityTest, SchedulerPluginOfVersion10Runs) {
  Config config = *Config::Make({});
  Logger log;
  PluginRegistry registry(config, log);
  registry.RegisterBuiltin(reinterpret_cast<bps_scheduler_plugin_fn>(&v1_0_scheduler_entry));
  absl::StatusOr<Scheduler> scheduler = registry.CreateScheduler("lifo", BPS_DIRECTION_PUSH);
  ASSERT_TRUE(scheduler.ok()) << scheduler.status();
  for (uint64_t id = 1; id <= 3; ++id) {
    bps_task task = {};
    task.id = id;
    task.bytes = 10;
    scheduler->Enqueue(0, task);
  }
  EXPECT_TRUE(scheduler->Withdraw(2));
  EXPECT_EQ(scheduler->Stats().queued_tasks, 2u);  // it has no stats of its own
  EXPECT_EQ(scheduler->WakeAt(0), kNever);         // nor wake_at
  std::vector<uint64_t> order;
  const std::vector<bps_budget> budgets = {{0, 1, 100}};
  while (true) {
    absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler->Next(0, budgets);
    ASSERT_TRUE(next.ok()) << next.status();
    if (!next->has_value()) break;
    order.push_back((*next)->id);
    scheduler->Sent(0, order.back());
    scheduler->Complete(0, order.back(), BPS_OK);
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 1}));
}

TEST(CompatibilityTest, SchedulerPluginOfVersion10OrdersWhatIsDoneWithinAHost) {
  Config config = *Config::Make({});
  Logger log;
  PluginRegistry registry(config, log);
  registry.RegisterBuiltin(reinterpret_cast<bps_scheduler_plugin_fn>(&v1_0_scheduler_entry));
  const absl::Status made = registry.CreateScheduler("lifo", BPS_DIRECTION_LOCAL).status();
  EXPECT_TRUE(made.ok()) << made;
}

}  // namespace
}  // namespace byteps
