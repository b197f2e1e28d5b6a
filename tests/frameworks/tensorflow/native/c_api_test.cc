// Which versions of TensorFlow the kernels take: objects that look like TensorFlow's, one for each process.

#include "frameworks/tensorflow/native/c_api.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace byteps::tensorflow {
namespace {

// Runs in a process of its own: what is found is kept until the process ends. It exits with 0 if `expected` is a part
// of what is missing; "": nothing is missing.
void FindIn(const char* variable, const std::string& expected) {
  const std::string path = std::filesystem::absolute(std::getenv(variable)).string();
  if (dlopen(path.c_str(), RTLD_NOW) == nullptr) std::exit(2);
  const std::string missing = CApi::Missing();
  const bool found = CApi::Find() != nullptr;
  std::exit(found == expected.empty() && missing.empty() == expected.empty() &&
                    missing.find(expected) != std::string::npos
                ? 0
                : 1);
}

TEST(CApiTest, TakesCallbacksThatAreFunctions) {
  EXPECT_EXIT(FindIn("KNOWN_TENSORFLOW", ""), testing::ExitedWithCode(0), "");
}

TEST(CApiTest, RefusesCallbacksOfAnotherTypeAndCallsNone) {
  EXPECT_EXIT(FindIn("OTHER_TENSORFLOW", "std::function"), testing::ExitedWithCode(0), "");
}

TEST(CApiTest, RefusesCallbacksThatAreNotCalled) {
  EXPECT_EXIT(FindIn("SILENT_TENSORFLOW", "std::function"), testing::ExitedWithCode(0), "");
}

TEST(CApiTest, WithoutTensorFlow) {
  EXPECT_EQ(CApi::Find(), nullptr);
  EXPECT_STREQ(CApi::Missing(), "libtensorflow_framework.so.2 is not loaded");
}

}  // namespace
}  // namespace byteps::tensorflow
