// In which order the GPUs of a host are given what they reduce: the most urgent first, however it came.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "abi/device.h"
#include "core/plugin/plugin_host.h"
#include "core/worker/device/gpu_group_options.h"
#include "core/worker/device/gpu_group_stage.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"
#include "tests/sim/device_program.h"
#include "tests/sim/fake_gpus.h"
#include "tests/sim/simulated_job.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps {
namespace {

// The fake plugin, which writes down every all-reduce. What is put into a stream behind its first one waits for `go`.
class Launches {
 public:
  struct Launch {
    const bps_device_comm* comm;
    const std::byte* from;
  };

  Launches() {
    bps_device_plugin_v1_fake(PluginHost(), &fake_);
    plugin_ = *fake_;
    collectives_ = *fake_->collectives;
    collectives_.all_reduce = AllReduce;
    plugin_.collectives = &collectives_;
    now_ = this;
  }
  ~Launches() { now_ = nullptr; }
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  const bps_device_plugin* plugin() const { return &plugin_; }
  const std::vector<Launch>& all() const { return all_; }
  void Go() { go_ = 1; }

 private:
  static int32_t AllReduce(bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                           int32_t reduction, bps_device_stream stream, bps_failure* failure) {
    if (now_->go_ == 0 && !now_->held_[stream]) {
      now_->held_[stream] = true;
      // Of one of the two GPUs.
      EXPECT_TRUE(FakeGpu().hold(0, stream, &now_->go_) == BPS_OK || FakeGpu().hold(1, stream, &now_->go_) == BPS_OK);
    }
    now_->all_.push_back({comm, static_cast<const std::byte*>(from)});
    return now_->fake_->collectives->all_reduce(comm, from, to, count, dtype, reduction, stream, failure);
  }

  static Launches* now_;
  const bps_device_plugin* fake_ = nullptr;
  bps_device_plugin plugin_;
  bps_device_collectives collectives_;
  std::vector<Launch> all_;
  std::map<bps_device_stream, bool> held_;
  int32_t go_ = 0;
};

Launches* Launches::now_ = nullptr;

TEST(DeviceOrderTest, TheMostUrgentIsReducedFirst) {
  for (const uint64_t seed : {0, 1, 2}) {
    SCOPED_TRACE(seed);
    UseGpus(2, seed);
    Launches launches;
    JobOptions options = {.seed = 4 + seed, .workers = 2, .workers_per_host = 2, .servers = 0, .adverse = false};
    options.local = true;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    GpuGroupOptions group;
    group.rows_in_group = 1;
    std::vector<std::unique_ptr<DeviceProgram>> programs;
    for (int rank = 0; rank < 2; ++rank) {
      programs.push_back(
          std::make_unique<DeviceProgram>(&job.worker(static_cast<uint32_t>(rank)), rank, group, launches.plugin()));
    }
    struct Submitted {
      std::string name;
      DeviceProgram* program;
      DeviceCall* call;
      std::vector<float> expected;
    };
    std::vector<Submitted> all;
    const auto submit = [&](const std::string& name, int64_t priority) {
      const std::vector<std::vector<float>> inputs = {job.Numbers(700), job.Numbers(700)};
      for (size_t rank = 0; rank < 2; ++rank) {
        DeviceCall* const call = programs[rank]->Submit({.name = name,
                                                         .elements = 700,
                                                         .input = inputs[rank],
                                                         .priority = priority,
                                                         .in_place = true,
                                                         .later = true});
        ASSERT_NE(call, nullptr);
        all.push_back({name, programs[rank].get(), call, SimulatedJob::Sum(inputs)});
      }
    };
    // As much as the GPUs are given at once.
    constexpr size_t kAhead = GpuGroupStage::kGroupsAhead;
    std::vector<std::string> expected;
    for (size_t i = 0; i < kAhead; ++i) {
      expected.push_back("early" + std::to_string(i));
      ASSERT_NO_FATAL_FAILURE(submit(expected.back(), 0));
    }
    const bool given = job.RunUntil([&] { return launches.all().size() == 2 * kAhead; });
    for (const auto& [name, priority] : {std::pair("first", 0), std::pair("idle", -1), std::pair("soon", 1),
                                         std::pair("second", 0), std::pair("urgent", 7), std::pair("next", 1)}) {
      ASSERT_NO_FATAL_FAILURE(submit(name, priority));
    }
    job.RunFor(100 * kMillisecond);
    // (Nothing ends before it goes on, the test neither.)
    EXPECT_TRUE(given && launches.all().size() == 2 * kAhead) << launches.all().size() << " reductions were begun";
    launches.Go();
    ASSERT_TRUE(job.RunUntil([&] {
      for (const Submitted& each : all) {
        if (!each.call->ended()) return false;
      }
      return true;
    }));
    std::map<const bps_device_comm*, std::vector<std::string>> orders;
    for (const Launches::Launch& launch : launches.all()) {
      for (const Submitted& each : all) {
        const auto* begin = static_cast<const std::byte*>(each.call->output);
        if (launch.from >= begin && launch.from < begin + each.call->elements * sizeof(float)) {
          orders[launch.comm].push_back(each.name);
        }
      }
    }
    for (const char* name : {"urgent", "soon", "next", "first", "second", "idle"}) expected.push_back(name);
    ASSERT_EQ(orders.size(), 2u);
    for (const auto& [comm, order] : orders) EXPECT_EQ(order, expected);
    for (const Submitted& each : all) {
      ASSERT_TRUE(each.call->outcome().ok()) << each.call->outcome();
      each.program->Read(each.call);
    }
    for (const auto& program : programs) program->Synchronize();
    for (const Submitted& each : all) EXPECT_EQ(each.call->result(), each.expected);
    ExpectNoRaces();
    job.Finish();
  }
}

}  // namespace
}  // namespace byteps
