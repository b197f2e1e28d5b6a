// What is said where the driver, its devices or NCCL are missing. Each case is a process of its own: a library that is
// loaded stays.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"
#include "device_plugins/cuda/comm.h"
#include "device_plugins/cuda/driver.h"
#include "device_plugins/cuda/nccl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kFolder = "tests/device_plugins/cuda/";

void Load(const char* path) {
  if (::dlopen((kFolder + path).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
}

// Prints what Driver::Get says, and ends the process with its code.
[[noreturn]] void Get() {
  try {
    Driver::Get();
  } catch (const devices::Error& error) {
    std::fprintf(stderr, "%s", error.what());
    ::_exit(error.code());
  }
  ::_exit(BPS_OK);
}

[[noreturn]] void GetOfStandIn(const char* variable, const char* value) {
  Load("standin/libcuda.so.1");
  ::setenv(variable, value, 1);
  Get();
}

bool HasDriver() {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver != nullptr;
}

TEST(LoadingDeathTest, NoDriver) {
  if (HasDriver()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EXIT(Get(), testing::ExitedWithCode(BPS_UNAVAILABLE),
              "no NVIDIA driver: libcuda.so.1: cannot open shared object file");
}

TEST(LoadingDeathTest, ADriverIsThere) {
  EXPECT_EXIT(GetOfStandIn("STANDIN_CUDA_INIT", "0"), testing::ExitedWithCode(BPS_OK), "");
}

TEST(LoadingDeathTest, ADriverWithoutDevices) {
  EXPECT_EXIT(GetOfStandIn("STANDIN_CUDA_INIT", "100"), testing::ExitedWithCode(BPS_UNAVAILABLE),
              "the NVIDIA driver \\(CUDA 13000\\) gives no device: CUDA_ERROR_NO_DEVICE \\(100\\)");
  EXPECT_EXIT(GetOfStandIn("STANDIN_CUDA_DEVICES", "0"), testing::ExitedWithCode(BPS_UNAVAILABLE),
              "gives no device; is CUDA_VISIBLE_DEVICES empty");
}

TEST(LoadingDeathTest, ADriverThatDoesNotFitItsKernelModule) {
  EXPECT_EXIT(GetOfStandIn("STANDIN_CUDA_INIT", "803"), testing::ExitedWithCode(BPS_FAILED_PRECONDITION),
              "cannot be initialised: CUDA error \\(803\\)");
}

TEST(LoadingDeathTest, ADriverThatIsTooOld) {
  const auto get = [] {
    Load("old/libcuda.so.1");
    Get();
  };
  EXPECT_EXIT(get(), testing::ExitedWithCode(BPS_FAILED_PRECONDITION),
              "too old: libcuda.so.1 lacks cuDriverGetVersion");
}

TEST(LoadingTest, CodesOfTheDriver) {
  EXPECT_EQ(CodeOf(kSuccess), BPS_OK);
  EXPECT_EQ(CodeOf(kOutOfMemory), BPS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(CodeOf(kIllegalAddress), BPS_DATA_LOSS);
  EXPECT_EQ(CodeOf(kLaunchFailed), BPS_DATA_LOSS);
  EXPECT_EQ(CodeOf(kStreamCaptureUnsupported), BPS_FAILED_PRECONDITION);
  EXPECT_EQ(CodeOf(999), BPS_INTERNAL);
}

TEST(LoadingTest, NcclVersions) {
  EXPECT_EQ(NcclVersion(22809), "2.28.9");
  EXPECT_EQ(NcclVersion(23203), "2.32.3");
  EXPECT_EQ(NcclVersion(2708), "2.7.8");
}

TEST(LoadingTest, NcclOfAFolderIsFoundWithItsPathAndVersion) {
  const Nccl nccl = FindNccl(kFolder + "nccl");
  EXPECT_THAT(nccl.text, AllOf(HasSubstr("NCCL 2.28.9, "), HasSubstr("/nccl/lib/libnccl.so.2"))) << nccl.why_not;
  // One that is loaded is taken if no variable says otherwise.
  EXPECT_EQ(FindNccl("").text, nccl.text);
  const Nccl other = FindNccl("/nowhere");
  EXPECT_EQ(other.text, "");
  EXPECT_THAT(other.why_not,
              AllOf(HasSubstr("has loaded NCCL 2.28.9, "), HasSubstr("/nccl/lib/libnccl.so.2 already"),
                    HasSubstr("BYTEPS_NCCL_HOME=/nowhere"), HasSubstr("LD_PRELOAD=/nowhere/lib/libnccl.so.2")));
}

TEST(LoadingDeathTest, NoNccl) {
  const auto find = [] {
    const Nccl nccl = FindNccl("/nowhere");
    std::fprintf(stderr, "%s%s", nccl.text.c_str(), nccl.why_not.c_str());
    ::_exit(nccl.text.empty() ? 1 : 0);
  };
  void* loaded = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (loaded != nullptr) GTEST_SKIP() << "this process has NCCL";
  EXPECT_EXIT(
      find(), testing::ExitedWithCode(1),
      "/nowhere/lib/libnccl.so.2: cannot open shared object file.*; /usr/local/nccl/lib/libnccl.so.2: cannot open.*; "
      "libnccl.so.2: cannot open");
}

// What the plugin answers where NCCL is needed: GetNccl.
[[noreturn]] void Need(const std::string& home) {
  try {
    GetNccl(home);
  } catch (const devices::Error& error) {
    std::fprintf(stderr, "%s", error.what());
    ::_exit(error.code());
  }
  ::_exit(BPS_OK);
}

TEST(LoadingDeathTest, NcclThatCannotBeUsed) {
  const auto of_version = [](const char* version) {
    ::setenv("STANDIN_NCCL_VERSION", version, 1);
    Need(kFolder + "nccl");
  };
  EXPECT_EXIT(of_version("21800"), testing::ExitedWithCode(BPS_OK), "");
  EXPECT_EXIT(of_version("21705"), testing::ExitedWithCode(BPS_FAILED_PRECONDITION),
              "NCCL 2.17.5, .*/nccl/lib/libnccl.so.2 is too old: 2.18.0 or later is needed");
  EXPECT_EXIT(Need(kFolder + "partial"), testing::ExitedWithCode(BPS_FAILED_PRECONDITION),
              "NCCL 2.28.9, .*/partial/lib/libnccl.so.2 lacks ncclGetUniqueId");
  EXPECT_EXIT(Need("/nowhere"), testing::ExitedWithCode(BPS_UNAVAILABLE), "no NCCL: /nowhere/lib/libnccl.so.2: cannot");
  const auto beside_another = [] {
    Load("partial/lib/libnccl.so.2");
    Need(kFolder + "nccl");
  };
  EXPECT_EXIT(beside_another(), testing::ExitedWithCode(BPS_UNAVAILABLE),
              "no NCCL: this process has loaded NCCL 2.28.9, .*/partial/lib/libnccl.so.2 already, not that of "
              "BYTEPS_NCCL_HOME=tests/device_plugins/cuda/nccl");
}

}  // namespace
}  // namespace byteps::cuda
