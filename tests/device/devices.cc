// What the plugin says of itself and of its devices; which errors open has.

#include <cstddef>
#include <cstring>
#include <string>

#include "abi/byteps.h"
#include "tests/device/device_test.h"

namespace byteps::testing {
namespace {

TEST_P(DeviceTest, DescribesItself) {
  EXPECT_STREQ(plugin_->info.kind, "device");
  EXPECT_GE(plugin_->table->struct_size, offsetof(bps_device_table, fold)) << "what is required";
  bps_device_versions versions = {};
  versions.struct_size = sizeof versions;
  Expect(BPS_OK, plugin_->versions(nullptr, &versions, failure()), "versions");
  EXPECT_STRNE(versions.driver, "");
  ASSERT_NE(versions.collectives, nullptr);
  ASSERT_NE(versions.why_not, nullptr);
  EXPECT_EQ(versions.collectives[0] == '\0', versions.why_not[0] != '\0') << versions.why_not;
}

TEST_P(DeviceTest, DescribesEachDevice) {
  int32_t count = 0;
  Expect(BPS_OK, plugin_->count(nullptr, &count, failure()), "count");
  ASSERT_GE(count, 1);
  for (int32_t index = 0; index < count; ++index) {
    bps_device_facts facts = {};
    facts.struct_size = sizeof facts;
    Expect(BPS_OK, plugin_->facts(nullptr, index, &facts, failure()), "facts");
    EXPECT_STRNE(facts.name, "");
    EXPECT_GT(facts.memory, 0u);
  }
  bps_device_facts facts = {};
  facts.struct_size = sizeof facts;
  Expect(BPS_INVALID_ARGUMENT, plugin_->facts(nullptr, count, &facts, failure()), "facts of one too many");
}

TEST_P(DeviceTest, FillsNoMoreThanItsCallerKnows) {
  bps_device_facts facts;
  std::memset(&facts, 0x5A, sizeof facts);
  facts.struct_size = offsetof(bps_device_facts, pci);
  Expect(BPS_OK, plugin_->facts(nullptr, 0, &facts, failure()), "facts");
  EXPECT_EQ(facts.struct_size, offsetof(bps_device_facts, pci));
  EXPECT_EQ(facts.memory, 0x5A5A5A5A5A5A5A5Au);
}

TEST_P(DeviceTest, ADeviceThatIsNotThereIsAnError) {
  int32_t count = 0;
  Expect(BPS_OK, plugin_->count(nullptr, &count, failure()), "count");
  for (const int32_t index : {count, -1}) {
    EXPECT_EQ(Open(index), nullptr);
    EXPECT_NE(reason(), "");
  }
}

TEST_P(DeviceTest, IsOpenedSeveralTimes) {
  bps_device* other = Open(0);
  ASSERT_NE(other, nullptr);
  void* memory = Allocate(4096);
  Write(memory, std::vector<uint8_t>(4096, 7));
  // The other sees the same memory.
  bps_device_pointer pointer = {};
  pointer.struct_size = sizeof pointer;
  Expect(BPS_OK, table_->pointer(other, memory, &pointer, failure()), "pointer");
  EXPECT_EQ(pointer.type, BPS_CUDA);
}

}  // namespace
}  // namespace byteps::testing
