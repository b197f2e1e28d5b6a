// Collectives whose memory lies in GPUs, on the simulated network: random programs under each schedule of the fake GPUs
// against what they must bring, and their ends.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/base/status.h"
#include "core/worker/device/staged_collectives.h"
#include "device_plugins/fake/control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/collective_gpus.h"
#include "tests/sim/collective_program.h"
#include "tests/sim/device_program.h"
#include "tests/sim/fake_gpus.h"
#include "tests/sim/gather.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

using ::testing::HasSubstr;

JobOptions OptionsOf(uint64_t seed) {
  constexpr uint32_t kWorkers[] = {2, 3, 5};
  JobOptions options;
  options.seed = seed;
  options.workers = kWorkers[seed % std::size(kWorkers)];
  return options;
}

TEST(DeviceCollectives, RandomProgramsBringWhatTheyMustInEverySchedule) {
  ForEachSeed(1000, [](uint64_t seed) {
    const JobOptions options = OptionsOf(seed);
    UseGpus(options.workers, seed / 3);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    CollectiveGpus gpus(&job, seed);
    CollectiveProgram program(&job, seed, &gpus);
    for (int i = 0; i < 3; ++i) {
      program.Run(1 + seed % 9, 3000);
      if (::testing::Test::HasFatalFailure()) return;
    }
    ExpectNoRaces();
    EXPECT_EQ(Counts().synchronisations, 0u);
    job.Finish();
  });
}

// One rank's gather of large and small tensors on its GPU.
class GpuGather {
 public:
  GpuGather(SimulatedJob* job, CollectiveGpus* gpus, uint32_t rank, const std::string& name, size_t rows, Time timeout)
      : gather_(name, job->workers(), rows, timeout), output_(rows * job->workers()), asked_(gather_.asked()) {
    asked_.output = reinterpret_cast<std::byte*>(output_.data());
    asked_.capacity = output_.size() * sizeof(int64_t);
    gpus->Move(rank, &asked_);
    status_ = job->worker(rank).Collect(asked_);
  }
  bool accepted() const { return status_.ok(); }
  bool ended() const { return !status_.ok() || asked_.request->ended(); }
  absl::Status outcome() const { return status_.ok() ? asked_.request->outcome() : status_; }
  const Request* request() const { return asked_.request.get(); }
  // Has it a result, in a stream at least?
  bool over() const { return ended() || asked_.request->state() == RequestState::kEnqueued; }

 private:
  Gather gather_;
  std::vector<int64_t> output_;
  Collective asked_;
  absl::Status status_;
};

// Whatever ends one, on whichever rank, all ranks hear of it; then the next round works, and has all that it needs.
TEST(DeviceCollectives, TroubleEndsEveryOperation) {
  enum Trouble : uint64_t {
    kCancel,
    kDeadline,
    kStream,
    kNoPinnedMemory,
    kFailedCopy,
    kFailedResult,
    kFailedRecord,
    kFailedWait,
    kKinds
  };
  ForEachSeed(300, [](uint64_t seed) {
    const auto trouble = static_cast<Trouble>(seed % kKinds);
    const uint64_t turn = seed / kKinds;
    const size_t rows = turn % 2 == 0 ? 100 : 40'000;
    JobOptions options;
    options.seed = seed;
    options.workers = 3;
    UseGpus(options.workers, turn);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    CollectiveGpus gpus(&job, seed);
    gpus.UseAll();
    static int32_t go;
    go = 0;
    if (trouble == kStream) gpus.Hold(1, &go);
    if (trouble == kNoPinnedMemory) FakeGpu().fail("register_host", turn % 6, BPS_RESOURCE_EXHAUSTED);
    if (trouble == kFailedCopy) FakeGpu().fail("copy_to_host", turn % 3, BPS_INTERNAL);
    // The trainers' own copies and what is recorded for the streams come first: two for each rank.
    if (trouble == kFailedResult) FakeGpu().fail("copy_to_device", 6 + turn % 3, BPS_INTERNAL);
    if (trouble == kFailedRecord) FakeGpu().fail("event_record", 6 + turn % 6, BPS_INTERNAL);
    if (trouble == kFailedWait) FakeGpu().fail("stream_wait", turn % 3, BPS_INTERNAL);
    std::vector<std::unique_ptr<GpuGather>> all;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if (trouble == kDeadline && rank == 1) continue;
      all.push_back(std::make_unique<GpuGather>(&job, &gpus, rank, "g", rows, 5 * kSecond));
      ASSERT_TRUE(all.back()->accepted());
    }
    const auto ended = [&] {
      for (const auto& each : all) {
        if (!each->ended()) return false;
      }
      return true;
    };
    job.RunFor(static_cast<Time>(seed % 11) * kMillisecond / 2);
    const bool over = all[1 % all.size()]->over();
    if (trouble == kCancel) job.worker(1).Cancel(all[1]->request());
    ASSERT_TRUE(job.RunUntil(ended));
    int failed = 0;
    for (const auto& each : all) {
      const absl::Status outcome = each->outcome();
      if (!outcome.ok()) {
        ++failed;
        EXPECT_THAT(std::string(outcome.message()), HasSubstr("\"g\""));
        EXPECT_TRUE(IsRetryable(outcome)) << outcome;
      }
      if (trouble == kStream || trouble == kDeadline) {
        EXPECT_EQ(outcome.code(), absl::StatusCode::kDeadlineExceeded) << outcome;
      }
      if (trouble == kStream && each == all[1]) {
        EXPECT_THAT(std::string(outcome.message()), HasSubstr("what was in the caller's stream of GPU 1"));
      }
      if (trouble == kNoPinnedMemory && !outcome.ok()) {
        EXPECT_EQ(outcome.code(), absl::StatusCode::kResourceExhausted) << outcome;
      }
      if (trouble == kFailedCopy) {
        EXPECT_FALSE(outcome.ok());
      }
      // Whoever has all of it already, or has it in a stream, ends well; else it says why.
      if (trouble == kCancel && each == all[1]) {
        EXPECT_EQ(outcome.code(), over ? absl::StatusCode::kOk : absl::StatusCode::kCancelled) << outcome;
      } else if (trouble == kCancel && !outcome.ok()) {
        EXPECT_FALSE(over);
        EXPECT_EQ(outcome.code(), absl::StatusCode::kAborted) << outcome;
        EXPECT_THAT(std::string(outcome.message()), HasSubstr("rank 1"));
      }
    }
    // Before anything has moved.
    if (trouble == kCancel && seed % 11 == 0) {
      EXPECT_EQ(failed, 3);
    }
    if (trouble == kFailedResult) {
      EXPECT_EQ(failed, 1);
    }
    if (trouble == kFailedRecord) {
      EXPECT_EQ(failed, turn % 6 < 3 ? 3 : 1);
    }
    if (trouble == kFailedWait) {
      EXPECT_LE(failed, 1);
      FakeGpu().fail("stream_wait", UINT64_MAX, BPS_INTERNAL);  // it may not have come to it
    }
    if (trouble == kDeadline) {
      GpuGather late(&job, &gpus, 1, "g", rows, 5 * kSecond);
      ASSERT_TRUE(job.RunUntil([&] { return late.ended(); }));
      // With the announcements it may have had all bytes of a small one, before it heard that the others gave up.
      EXPECT_TRUE(!late.outcome().ok() || rows == 100);
    }
    go = 1;
    all.clear();
    for (uint32_t rank = 0; rank < 3; ++rank) {
      all.push_back(std::make_unique<GpuGather>(&job, &gpus, rank, "g", rows, 600 * kSecond));
    }
    ASSERT_TRUE(job.RunUntil(ended));
    for (const auto& each : all) EXPECT_TRUE(each->outcome().ok()) << each->outcome();
    ExpectNoRaces();
    job.Finish();
  });
}

// What is in a stream with no event behind it may be under way for a while: neither the library's memory nor the
// caller's is used meanwhile.
TEST(DeviceCollectives, WhatNoEventTellsOfIsHeld) {
  for (uint64_t failing = 0; failing < 6; ++failing) {
    SCOPED_TRACE(failing);
    JobOptions options;
    options.seed = failing;
    options.workers = 3;
    options.adverse = false;
    UseGpus(3, 0);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    CollectiveGpus gpus(&job, failing);
    gpus.UseAll();
    const auto round = [&](int expected) {
      std::vector<std::unique_ptr<GpuGather>> all;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        all.push_back(std::make_unique<GpuGather>(&job, &gpus, rank, "g", 5'000, 600 * kSecond));
      }
      int failed = 0;
      for (const auto& each : all) {
        ASSERT_TRUE(job.RunUntil([&] { return each->ended(); }));
        failed += each->outcome().ok() ? 0 : 1;
      }
      EXPECT_EQ(failed, expected);
    };
    round(0);
    const uint64_t registrations = Counts().registrations;
    const Time begin = job.worker(0).now();
    // Behind what is recorded at the submissions: the inputs of three ranks, then their results.
    FakeGpu().fail("event_record", 6 + failing, BPS_INTERNAL);
    round(failing < 3 ? 3 : 1);
    EXPECT_GE(job.worker(0).now(), begin + StagedCollectives::kReleaseTime);
    EXPECT_EQ(Counts().registrations, registrations);
    round(0);
    EXPECT_EQ(Counts().registrations, registrations + 1);
    ExpectNoRaces();
    job.Finish();
  }
}

// Work in the stream of an output alone holds up its own operation, until it has ended; no other operation does.
TEST(DeviceCollectives, ABusyStreamOfAnOutputHoldsUpItsOwnOperationAlone) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options;
    options.seed = seed;
    options.workers = 3;
    UseGpus(options.workers, seed / 2);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    CollectiveGpus gpus(&job, seed);
    gpus.UseAll();
    static int32_t go;
    go = 0;
    gpus.Hold(1, &go, true);
    const bool in_time = seed % 2 == 0;
    const auto gather = [&](const std::string& name, bool other, Time timeout) {
      gpus.UseOutputStream(other);
      std::vector<std::unique_ptr<GpuGather>> all;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        all.push_back(std::make_unique<GpuGather>(&job, &gpus, rank, name, 5'000, timeout));
      }
      return all;
    };
    const auto busy = gather("busy", true, (in_time ? 600 : 60) * kSecond);
    const auto idle = gather("idle", false, 30 * kSecond);
    for (const auto& each : idle) {
      ASSERT_TRUE(job.RunUntil([&] { return each->ended(); }));
      EXPECT_TRUE(each->outcome().ok()) << each->outcome();
    }
    for (const auto& each : busy) EXPECT_FALSE(each->ended());
    if (in_time) go = 1;
    for (const auto& each : busy) {
      ASSERT_TRUE(job.RunUntil([&] { return each->ended(); }));
      if (in_time) {
        EXPECT_TRUE(each->outcome().ok()) << each->outcome();
      } else {
        EXPECT_EQ(each->outcome().code(), absl::StatusCode::kDeadlineExceeded) << each->outcome();
      }
    }
    if (!in_time) {
      EXPECT_THAT(std::string(busy[1]->outcome().message()),
                  HasSubstr("what was in the caller's stream of GPU 1 (fake GPU) for its output"));
    }
    go = 1;
    ExpectNoRaces();
    job.Finish();
  });
}

// Tensors and collectives of one priority are copied to the host in the order in which they began, however many there
// were of either kind before.
TEST(DeviceCollectives, TensorsAndCollectivesKeepTheirOrder) {
  constexpr size_t kElements = 200'000, kRows = 1000;
  ASSERT_EQ(FakeGpu().reset("devices=1,schedule=late"), 1);
  SimulatedJob job({.seed = 5, .workers = 1, .adverse = false});
  ASSERT_TRUE(job.Start());
  CollectiveGpus gpus(&job, 5);
  gpus.UseAll();
  DeviceProgram program(&job.worker(0), 0);
  program.ShareLanes(gpus.lanes(0));
  const std::vector<float> numbers = job.Numbers(kElements);
  const DeviceAsk ask = {.name = "t", .elements = kElements, .input = numbers};
  for (int i = 0; i < 5; ++i) {
    const DeviceCall* call = program.Submit(ask);
    ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
  }
  const uint64_t before = Counts().bytes_to_host;
  const DeviceCall* tensor = program.Submit(ask);
  ASSERT_TRUE(job.RunUntil([&] { return Counts().bytes_to_host != before; }));
  const GpuGather gather(&job, &gpus, 0, "g", kRows, 600 * kSecond);
  ASSERT_TRUE(job.RunUntil([&] { return gather.ended(); }));
  EXPECT_TRUE(gather.outcome().ok()) << gather.outcome();
  EXPECT_EQ(Counts().bytes_to_host - before, kElements * sizeof(float) + kRows * sizeof(int64_t));
  ASSERT_TRUE(job.RunUntil([&] { return tensor->ended(); }));
  EXPECT_TRUE(tensor->outcome().ok()) << tensor->outcome();
  ExpectNoRaces();
  job.Finish();
}

TEST(DeviceCollectives, TheSteadyStateMakesNothing) {
  JobOptions options;
  options.seed = 5;
  options.workers = 3;
  options.adverse = false;
  UseGpus(3, 5);
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  CollectiveGpus gpus(&job, 5);
  gpus.UseAll();
  const auto round = [&] {
    std::vector<std::unique_ptr<GpuGather>> all;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      for (const size_t rows : {10, 5'000, 40'000}) {
        all.push_back(std::make_unique<GpuGather>(&job, &gpus, rank, "g" + std::to_string(rows), rows, 600 * kSecond));
      }
    }
    for (const auto& each : all) {
      ASSERT_TRUE(job.RunUntil([&] { return each->ended(); }));
      EXPECT_TRUE(each->outcome().ok()) << each->outcome();
    }
  };
  // How many events are under way at once differs from round to round: only many rounds need all.
  for (int i = 0; i < 20; ++i) round();
  const fake_gpu_counts before = Counts();
  for (int i = 0; i < 10; ++i) round();
  const fake_gpu_counts after = Counts();
  EXPECT_EQ(after.synchronisations, 0u);
  // Of device memory the trainers' own: input and output.
  EXPECT_EQ(after.allocations - before.allocations, 10u * 3 * 3 * 2);
  EXPECT_EQ(after.registrations, before.registrations);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  ExpectNoRaces();
}

}  // namespace
}  // namespace byteps
