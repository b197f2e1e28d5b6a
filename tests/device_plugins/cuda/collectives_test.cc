// The collectives of the CUDA plugin: its calls of NCCL, on a stand-in whose GPUs are simulated.

#include "tests/device_plugins/fake/collectives.h"

#include <dlfcn.h>

#include <cstdlib>

#include "abi/device.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_cuda(const bps_plugin_host*, const bps_device_plugin**);

namespace byteps {
namespace {

// Under the names libcuda.so.1 and libnccl.so.2, by which the plugin finds them then.
const fake_gpu_control* LoadTheStandIns() {
  ::setenv("STANDIN_CUDA_DEVICES", "4", 1);
  void* driver = ::dlopen("tests/device_plugins/cuda/standin/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* nccl = ::dlopen("tests/device_plugins/cuda/nccl/lib/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr || nccl == nullptr) {
    ADD_FAILURE() << ::dlerror();
    return nullptr;
  }
  auto* gpus = reinterpret_cast<const fake_gpu_control* (*)()>(::dlsym(driver, "bps_fake_gpu"));
  return gpus == nullptr ? nullptr : gpus();
}

INSTANTIATE_TEST_SUITE_P(StandIn, CollectivesTest,
                         ::testing::ValuesIn(Schedules({bps_device_plugin_v1_cuda, LoadTheStandIns})));

// A fixture of its own, so that variables of the stand-in are unset again.
class NcclFailsTest : public CollectivesTest {
 protected:
  void TearDown() override {
    for (const char* each : {"STANDIN_NCCL_STALL", "STANDIN_NCCL_ERROR", "STANDIN_NCCL_JOIN"}) ::unsetenv(each);
    CollectivesTest::TearDown();
  }
  int32_t Put(const Member& member) {
    if (const int32_t code = all_->begin(member.comm, failure()); code != BPS_OK) return code;
    const int32_t code = all_->all_reduce(member.comm, member.memory, member.memory, count_, BPS_FLOAT32, BPS_SUM,
                                          member.stream, failure());
    const int32_t ended = all_->end(member.comm, failure());
    return code != BPS_OK ? code : ended;
  }
};

TEST_P(NcclFailsTest, AStalledCommunicatorIsNotReadyAndCanBeAborted) {
  Start(2, 100);
  ::setenv("STANDIN_NCCL_STALL", "1", 1);
  for (const Member& member : members_) ASSERT_EQ(Put(member), BPS_OK) << reason_;
  for (Member& member : members_) {
    EXPECT_EQ(all_->state(member.comm, failure()), BPS_DEVICE_NOT_READY);
    all_->abort(member.comm);
    member.comm = nullptr;
  }
}

TEST_P(NcclFailsTest, AnAsynchronousErrorIsSaidWithNcclsWords) {
  Start(2, 100);
  ::setenv("STANDIN_NCCL_ERROR", "1", 1);
  ASSERT_EQ(Put(members_[0]), BPS_OK) << reason_;
  EXPECT_EQ(all_->state(members_[0].comm, failure()), BPS_UNAVAILABLE);
  EXPECT_NE(reason_.find("remote process exited"), std::string::npos) << reason_;
  EXPECT_NE(reason_.find("as STANDIN_NCCL_ERROR wants it"), std::string::npos) << reason_;
  // Final: nothing more can be put in.
  EXPECT_EQ(Put(members_[0]), BPS_FAILED_PRECONDITION);
}

TEST_P(NcclFailsTest, ARefusedJoinSaysWhichCallAndLeavesNothing) {
  Start(1, 100);
  void* const nccl = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(nccl, nullptr) << ::dlerror();
  auto* const communicators = reinterpret_cast<int (*)()>(::dlsym(nccl, "standin_nccl_communicators"));
  ASSERT_NE(communicators, nullptr);
  ASSERT_EQ(communicators(), 1);
  ::setenv("STANDIN_NCCL_JOIN", "2", 1);
  uint8_t id[BPS_DEVICE_COMM_ID] = {};
  bps_device_join_args args = {};
  args.struct_size = sizeof args;
  args.id = id;
  args.size = 1;
  bps_device_comm* comm = nullptr;
  EXPECT_EQ(all_->join(members_[0].device, &args, &comm, failure()), BPS_UNAVAILABLE);
  EXPECT_NE(reason_.find("ncclCommInitRankConfig: error: as STANDIN_NCCL_JOIN wants it"), std::string::npos) << reason_;
  EXPECT_EQ(communicators(), 1) << "one was left behind";
}

INSTANTIATE_TEST_SUITE_P(StandIn, NcclFailsTest,
                         ::testing::ValuesIn(Schedules({bps_device_plugin_v1_cuda, LoadTheStandIns})));

}  // namespace
}  // namespace byteps
