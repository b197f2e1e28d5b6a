// What the fake GPU is for: memory that the CPU cannot touch, work that runs late, races that are found in every
// schedule, failures on demand.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>

#include "abi/byteps.h"
#include "device_plugins/fake/control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::HasSubstr;

class FakeGpuTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(gpu_->reset(GetParam()), 1);
    bps_device_open_args args = {};
    args.struct_size = sizeof args;
    ASSERT_EQ(table_->open(&args, &device_, nullptr), BPS_OK);
    for (bps_device_stream* stream : {&first_, &second_}) {
      ASSERT_EQ(table_->stream_create(device_, 0, stream, nullptr), BPS_OK);
    }
    ASSERT_EQ(table_->allocate(device_, kBytes, &memory_, nullptr), BPS_OK);
    ASSERT_EQ(table_->allocate_host(device_, kBytes, &host_, nullptr), BPS_OK);
    ASSERT_EQ(table_->event_create(device_, &event_, nullptr), BPS_OK);
  }
  void TearDown() override {
    table_->event_destroy(device_, event_, nullptr);
    table_->close(device_);
  }

  uint64_t Races() {
    fake_gpu_counts counts;
    gpu_->counts(&counts);
    return counts.races;
  }
  std::string Race() {
    char text[400] = "";
    gpu_->race(0, text, sizeof text);
    return text;
  }
  void Ok(int32_t code) { EXPECT_EQ(code, BPS_OK); }
  void Synchronize() {
    Ok(table_->synchronize(device_, first_, nullptr));
    Ok(table_->synchronize(device_, second_, nullptr));
  }

  static constexpr uint64_t kBytes = 4096;
  const fake_gpu_control* gpu_ = bps_fake_gpu();
  const bps_device_table* table_ = gpu_->table;
  bps_device* device_ = nullptr;
  bps_device_stream first_ = nullptr, second_ = nullptr;
  bps_device_event* event_ = nullptr;
  void* memory_ = nullptr;
  void* host_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Schedules, FakeGpuTest,
                         testing::Values("schedule=late", "schedule=early", "schedule=random,seed=5"),
                         [](const auto& schedule) {
                           const std::string text = schedule.param;
                           return text.substr(text.find('=') + 1, text.find(',') - text.find('=') - 1);
                         });

TEST_P(FakeGpuTest, TheCpuCannotTouchDeviceMemory) {
  EXPECT_DEATH(*static_cast<volatile char*>(memory_) = 1, "");
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_EQ(::send(ends[0], memory_, 16, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(FakeGpuTest, MemoryThatWasNeverWrittenIsNan) {
  float value = 0;
  ASSERT_EQ(gpu_->peek(memory_, &value, sizeof value), 1);
  EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(std::isnan(static_cast<float*>(host_)[3]));
}

TEST_P(FakeGpuTest, AMissingWaitIsARaceInEverySchedule) {
  Ok(table_->fill(device_, memory_, 1, kBytes, first_, nullptr));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, second_, nullptr));
  Synchronize();
  EXPECT_EQ(Races(), 1u);
  EXPECT_THAT(Race(), HasSubstr("no event orders the two"));
}

TEST_P(FakeGpuTest, AnEventOrdersThem) {
  Ok(table_->fill(device_, memory_, 1, kBytes, first_, nullptr));
  Ok(table_->event_record(device_, event_, first_, nullptr));
  Ok(table_->stream_wait(device_, second_, event_, nullptr));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, second_, nullptr));
  Synchronize();
  EXPECT_EQ(Races(), 0u) << Race();
}

TEST_P(FakeGpuTest, AnEventRecordedTooEarlyDoesNotOrderThem) {
  Ok(table_->event_record(device_, event_, first_, nullptr));
  Ok(table_->fill(device_, memory_, 1, kBytes, first_, nullptr));
  Ok(table_->stream_wait(device_, second_, event_, nullptr));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, second_, nullptr));
  Synchronize();
  EXPECT_EQ(Races(), 1u);
}

TEST_P(FakeGpuTest, TheHostThatDoesNotAskRaces) {
  Ok(table_->fill(device_, memory_, 1, kBytes, first_, nullptr));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, first_, nullptr));
  Ok(table_->event_record(device_, event_, first_, nullptr));
  gpu_->host_access(host_, 8, 0);
  Synchronize();
  EXPECT_EQ(Races(), 1u);
  gpu_->host_access(host_, 8, 0);  // now it has waited
  EXPECT_EQ(Races(), 1u);
}

TEST_P(FakeGpuTest, AQueryThatIsReadyOrdersTheHost) {
  Ok(table_->fill(device_, memory_, 1, kBytes, first_, nullptr));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, first_, nullptr));
  Ok(table_->event_record(device_, event_, first_, nullptr));
  while (table_->event_query(device_, event_, nullptr) == BPS_DEVICE_NOT_READY) {
  }
  gpu_->host_access(host_, 8, 1);
  EXPECT_EQ(Races(), 0u) << Race();
  EXPECT_EQ(static_cast<char*>(host_)[kBytes - 1], 1);
}

TEST_P(FakeGpuTest, ReadersDoNotRaceButTheNextWriterWaitsForAllOfThem) {
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes / 2, first_, nullptr));
  Ok(table_->copy_to_host(device_, static_cast<char*>(host_) + kBytes / 2, memory_, kBytes / 2, second_, nullptr));
  Synchronize();
  EXPECT_EQ(Races(), 0u) << Race();
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes / 2, first_, nullptr));
  Ok(table_->fill(device_, memory_, 3, 8, second_, nullptr));
  Synchronize();
  EXPECT_EQ(Races(), 1u);
}

TEST_P(FakeGpuTest, ALateCopyIsStillAheadOfWhoDoesNotWait) {
  std::memset(host_, 0, kBytes);
  Ok(table_->fill(device_, memory_, 7, kBytes, first_, nullptr));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, first_, nullptr));
  if (std::string(GetParam()) == "schedule=late") {
    EXPECT_EQ(static_cast<char*>(host_)[0], 0);
  } else if (std::string(GetParam()) == "schedule=early") {
    EXPECT_EQ(static_cast<char*>(host_)[0], 7);
  }
}

TEST_P(FakeGpuTest, OnlyPinnedMemoryIsCopiedFromAndTo) {
  char ordinary[16] = {};
  EXPECT_EQ(table_->copy_to_host(device_, ordinary, memory_, 16, first_, nullptr), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(table_->copy_to_device(device_, memory_, ordinary, 16, first_, nullptr), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(table_->copy_within(device_, memory_, host_, 16, first_, nullptr), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(table_->fill(device_, memory_, 0, kBytes + 1, first_, nullptr), BPS_INVALID_ARGUMENT);
}

TEST_P(FakeGpuTest, ALostContextStaysLost) {
  Ok(table_->fill(device_, memory_, 7, kBytes, first_, nullptr));
  Ok(table_->event_record(device_, event_, first_, nullptr));
  gpu_->lose(0);
  EXPECT_EQ(table_->event_query(device_, event_, nullptr), BPS_DATA_LOSS);
  EXPECT_EQ(table_->copy_to_host(device_, host_, memory_, 16, first_, nullptr), BPS_DATA_LOSS);
  EXPECT_EQ(table_->synchronize(device_, first_, nullptr), BPS_DATA_LOSS);
}

TEST_P(FakeGpuTest, CallsFailOnDemand) {
  gpu_->fail("allocate_host", 1, BPS_RESOURCE_EXHAUSTED);
  void* base = nullptr;
  Ok(table_->allocate_host(device_, 16, &base, nullptr));
  EXPECT_EQ(table_->allocate_host(device_, 16, &base, nullptr), BPS_RESOURCE_EXHAUSTED);
  Ok(table_->allocate_host(device_, 16, &base, nullptr));
}

TEST_P(FakeGpuTest, ACapturedStreamTakesNoWork) {
  gpu_->capture(first_, 1);
  EXPECT_EQ(table_->fill(device_, memory_, 7, kBytes, first_, nullptr), BPS_FAILED_PRECONDITION);
  gpu_->capture(first_, 0);
  Ok(table_->fill(device_, memory_, 7, kBytes, first_, nullptr));
}

TEST_P(FakeGpuTest, AForkedChildIsRefused) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(table_->fill(device_, memory_, 7, kBytes, first_, nullptr) == BPS_FAILED_PRECONDITION ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_P(FakeGpuTest, GivingMemoryBackWaitsAndIsCounted) {
  Ok(table_->fill(device_, memory_, 7, kBytes, first_, nullptr));
  fake_gpu_counts before, after;
  gpu_->counts(&before);
  Ok(table_->release(device_, memory_, nullptr));
  gpu_->counts(&after);
  EXPECT_EQ(after.synchronisations, before.synchronisations + 1);
  EXPECT_EQ(after.races, 0u) << Race();
}

TEST_P(FakeGpuTest, AKernelRunsInTheOrderOfItsStream) {
  const auto add_one = [](void* user, void* const* inside) {
    ASSERT_NE(inside, nullptr);
    ++*static_cast<int*>(user);
    ++*static_cast<uint8_t*>(inside[0]);
  };
  int calls = 0;
  const fake_gpu_access all = {memory_, kBytes, 1, 0};
  Ok(table_->fill(device_, memory_, 1, kBytes, first_, nullptr));
  Ok(gpu_->launch(0, first_, add_one, &calls, &all, 1));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, first_, nullptr));
  Synchronize();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(*static_cast<uint8_t*>(host_), 2);
  EXPECT_EQ(Races(), 0u) << Race();
  Ok(gpu_->launch(0, first_, add_one, &calls, &all, 1));
  Ok(table_->copy_to_host(device_, host_, memory_, kBytes, second_, nullptr));
  Synchronize();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(Races(), 1u) << "nothing orders the two streams";
  const fake_gpu_access host = {host_, kBytes, 1, 0};
  EXPECT_EQ(gpu_->launch(0, first_, add_one, &calls, &host, 1), BPS_INVALID_ARGUMENT);
  gpu_->capture(first_, 1);
  EXPECT_EQ(gpu_->launch(0, first_, add_one, &calls, &all, 1), BPS_FAILED_PRECONDITION);
  gpu_->capture(first_, 0);
  EXPECT_EQ(calls, 2);
}

TEST(FakeGpuOptionsTest, ThoseThatMeanNothingAreErrors) {
  for (const char* text : {"devices", "devices=x", "schedule=slow", "speed=3", "devices=1;seed=2", "patience="}) {
    EXPECT_EQ(bps_fake_gpu()->reset(text), 0) << text;
  }
  EXPECT_EQ(bps_fake_gpu()->reset(""), 1);
}

}  // namespace
}  // namespace byteps
