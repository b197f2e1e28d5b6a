// device_test.h - the conformance suite of abi/device.h: a fixture that opens devices of the plugin under test.
//
//     extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host*, const bps_device_plugin**);
//     INSTANTIATE_TEST_SUITE_P(Fake, DeviceTest, testing::Values(DeviceUnderTest{"fake", bps_device_plugin_v1_fake}),
//                              DeviceUnderTest::Name);
//
// Where the plugin's probe says that it cannot be used here, tests skip themselves with its reason.
#ifndef BYTEPS_TESTS_DEVICE_DEVICE_TEST_H_
#define BYTEPS_TESTS_DEVICE_DEVICE_TEST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "abi/device.h"
#include "gtest/gtest.h"

namespace byteps::testing {

// The text behind a bps_failure of this host.
struct Failure {
  std::string reason;
  bps_failure* handle() { return reinterpret_cast<bps_failure*>(this); }
};

const bps_plugin_host* TestHost();

struct DeviceUnderTest {
  const char* name;
  bps_device_plugin_fn entry;
  std::function<void()> prepare = [] {};  // before each test
  static std::string Name(const ::testing::TestParamInfo<DeviceUnderTest>& info) { return info.param.name; }
};

class DeviceTest : public ::testing::TestWithParam<DeviceUnderTest> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Fails the test unless the call answers with `expected`; an error must have its reason.
  void Expect(int32_t expected, int32_t code, const char* call);
  const std::string& reason() const { return failure_.reason; }
  bps_failure* failure() { return failure_.handle(); }

  bps_device* Open(int32_t index);
  void* Allocate(uint64_t size);
  uint8_t* AllocateHost(uint64_t size);
  bps_device_stream Stream();
  bps_device_event* Event();
  // Asks until the event is there; fails the test at a deadline.
  void Await(bps_device_event* event);
  // Puts these bytes into device memory, and reads them, through streams of their own.
  void Write(void* to, const std::vector<uint8_t>& bytes);
  std::vector<uint8_t> Read(const void* from, uint64_t size);

  const bps_device_plugin* plugin_ = nullptr;
  const bps_device_table* table_ = nullptr;
  bps_device* device_ = nullptr;  // number 0

 private:
  Failure failure_;
  std::vector<bps_device*> open_;
  std::vector<void*> memory_, host_memory_;
  std::vector<bps_device_stream> streams_;
  std::vector<bps_device_event*> events_;
};

#define EXPECT_DONE(verb, ...) Expect(BPS_OK, table_->verb(device_, __VA_ARGS__, failure()), #verb)
#define EXPECT_ERROR(code, verb, ...) Expect(code, table_->verb(device_, __VA_ARGS__, failure()), #verb)

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_DEVICE_DEVICE_TEST_H_
