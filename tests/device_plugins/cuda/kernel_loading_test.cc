// Kernels that the driver cannot run, as those of a Toolkit that is newer than the driver: said once, with what would
// help, and the driver is not asked again.

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/cuda/kernel_image.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_cuda(const bps_plugin_host*, const bps_device_plugin**);

namespace byteps::cuda {

// As if this build had kernels: what the driver makes of them is the stand-in's to say.
const void* KernelImage() { return "kernels"; }
int KernelToolkit() { return 13020; }

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class KernelLoadingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::dlopen("tests/device_plugins/cuda/standin/libcuda.so.1", RTLD_NOW | RTLD_LOCAL), nullptr)
        << ::dlerror();
    static const bps_plugin_host host = {sizeof host, nullptr,
                                         [](bps_failure* failure, int32_t code, const char* reason) {
                                           *reinterpret_cast<std::string*>(failure) = reason;
                                           return code;
                                         },
                                         [](const void*, const char*) -> const char* { return nullptr; }};
    const bps_device_plugin* plugin = nullptr;
    ASSERT_EQ(bps_device_plugin_v1_cuda(&host, &plugin), BPS_OK);
    table_ = plugin->table;
    Open();
  }
  void TearDown() override {
    ::unsetenv("STANDIN_CUDA_MODULE");
    table_->close(device_);
  }
  void Open() {
    bps_device_open_args args = {};
    args.struct_size = sizeof args;
    ASSERT_EQ(table_->open(&args, &device_, failure()), BPS_OK) << reason_;
  }
  // Of nothing: it only needs its kernel.
  int32_t Convert(uint32_t to) {
    return table_->convert(device_, nullptr, to, nullptr, BPS_FLOAT32, 0, 1, nullptr, failure());
  }
  bps_failure* failure() { return reinterpret_cast<bps_failure*>(&reason_); }

  const bps_device_table* table_ = nullptr;
  bps_device* device_ = nullptr;
  std::string reason_;
};

TEST_F(KernelLoadingTest, ADriverThatCannotRunThemIsNotAskedAgain) {
  for (const char* result : {"200", "209", "218", "221", "222", "223"}) {
    SCOPED_TRACE(result);
    ::setenv("STANDIN_CUDA_MODULE", result, 1);
    for (const uint32_t to : {BPS_FLOAT32, BPS_FLOAT16}) {
      EXPECT_EQ(Convert(to), BPS_UNIMPLEMENTED);
      EXPECT_THAT(reason_, AllOf(HasSubstr("cuModuleLoadData: CUDA error (" + std::string(result) + ")"),
                                 HasSubstr("the kernels of this plugin need a driver of CUDA 13.2 or later, and this "
                                           "one is of CUDA 13.0")));
      ::setenv("STANDIN_CUDA_MODULE", "1", 1);
    }
    table_->close(device_);
    Open();
  }
}

TEST_F(KernelLoadingTest, WhatMayGoAwayIsTriedAgain) {
  ::setenv("STANDIN_CUDA_MODULE", "2", 1);
  EXPECT_EQ(Convert(BPS_FLOAT32), BPS_RESOURCE_EXHAUSTED);
  ::unsetenv("STANDIN_CUDA_MODULE");
  EXPECT_EQ(Convert(BPS_FLOAT32), BPS_OK) << reason_;
}

}  // namespace
}  // namespace byteps::cuda
