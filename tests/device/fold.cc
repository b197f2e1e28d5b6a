// The fold in the order of the ranks: the bits of docs/determinism.md, as the CPU computes them.

#include <cstddef>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/reduce/reduce.h"
#include "tests/device/device_test.h"

namespace byteps::testing {
namespace {

constexpr uint32_t kFloats[] = {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16};
constexpr uint32_t kIntegers[] = {BPS_INT8, BPS_UINT8, BPS_INT32, BPS_INT64};

size_t BytesOf(uint32_t dtype) { return ((dtype >> 8) & 0xff) / 8; }

bool IsNan(uint32_t dtype, const uint8_t* element) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, BytesOf(dtype));
  if (dtype == BPS_FLOAT16) return (bits & 0x7FFF) > 0x7C00;
  if (dtype == BPS_BFLOAT16) return (bits & 0x7FFF) > 0x7F80;
  if (dtype == BPS_FLOAT32) return (bits & 0x7FFFFFFF) > 0x7F800000;
  return dtype == BPS_FLOAT64 && (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000;
}

std::string Hex(const uint8_t* element, size_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, size);
  std::ostringstream text;
  text << std::hex << bits;
  return text.str();
}

// Every bit pattern is a number of these types: small and large ones, infinities, subnormals and NaNs among them.
std::vector<uint8_t> Elements(std::mt19937_64* random, uint32_t dtype, size_t count) {
  std::vector<uint8_t> bytes(count * BytesOf(dtype));
  for (uint8_t& each : bytes) each = static_cast<uint8_t>((*random)());
  if (dtype != BPS_FLOAT16 && dtype != BPS_BFLOAT16) return bytes;
  // Half of them of one size, so that sums round.
  for (size_t i = 0; i < count; i += 2) {
    const auto near = static_cast<uint16_t>((dtype == BPS_FLOAT16 ? 0x3C00 : 0x3F80) + (*random)() % 0x180);
    std::memcpy(&bytes[2 * i], &near, sizeof near);
  }
  return bytes;
}

TEST_P(DeviceTest, FoldsToTheBitsOfTheCpu) {
  if (table_->struct_size < offsetof(bps_device_table, fold) + sizeof table_->fold || table_->fold == nullptr) {
    GTEST_SKIP() << "this plugin has no fold";
  }
  if (table_->fold(device_, nullptr, nullptr, 2, 0, BPS_FLOAT32, BPS_SUM, nullptr, failure()) == BPS_UNIMPLEMENTED) {
    GTEST_SKIP() << reason();
  }
  const auto check = [&](uint32_t dtype, int32_t reduction, size_t n, size_t count, bool in_place) {
    SCOPED_TRACE("dtype " + std::to_string(dtype) + ", reduction " + std::to_string(reduction) + ", arrays " +
                 std::to_string(n) + ", elements " + std::to_string(count));
    std::mt19937_64 random(n * 1000 + count + dtype);
    std::vector<std::vector<uint8_t>> inputs;
    std::vector<const void*> on_host, on_device;
    const size_t bytes = count * BytesOf(dtype);
    for (size_t i = 0; i < n; ++i) {
      inputs.push_back(Elements(&random, dtype, count));
      void* memory = Allocate(bytes);
      Write(memory, inputs.back());
      on_device.push_back(memory);
    }
    for (const auto& each : inputs) on_host.push_back(each.data());
    std::vector<uint8_t> expected(bytes);
    Reduce({dtype, reduction}, on_host, {}, expected.data(), count);
    void* const to = in_place ? const_cast<void*>(on_device.back()) : Allocate(bytes);
    bps_device_stream stream = Stream();
    EXPECT_DONE(fold, to, on_device.data(), static_cast<uint32_t>(n), count, dtype, reduction, stream);
    EXPECT_DONE(synchronize, stream);
    const std::vector<uint8_t> folded = Read(to, bytes);
    for (size_t at = 0; at < bytes; at += BytesOf(dtype)) {
      if (IsNan(dtype, &expected[at]) && IsNan(dtype, &folded[at])) continue;  // which one is not specified
      ASSERT_EQ(std::memcmp(&folded[at], &expected[at], BytesOf(dtype)), 0)
          << "element " << at / BytesOf(dtype) << ": " << Hex(&folded[at], BytesOf(dtype)) << ", not "
          << Hex(&expected[at], BytesOf(dtype));
    }
  };
  for (const size_t n : {1, 2, 3, 8}) {
    for (const uint32_t dtype : kFloats) {
      for (const int32_t reduction : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
        ASSERT_NO_FATAL_FAILURE(check(dtype, reduction, n, 5'001, reduction == BPS_SUM));
      }
    }
    for (const uint32_t dtype : kIntegers) {
      for (const int32_t reduction : {BPS_SUM, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
        ASSERT_NO_FATAL_FAILURE(check(dtype, reduction, n, 1'001, reduction == BPS_MAX));
      }
    }
  }
  ASSERT_NO_FATAL_FAILURE(check(BPS_BFLOAT16, BPS_AVERAGE, 64, 1, true));
  ASSERT_NO_FATAL_FAILURE(check(BPS_FLOAT32, BPS_SUM, 2, 400'003, false));
  EXPECT_ERROR(BPS_UNIMPLEMENTED, fold, nullptr, nullptr, 2, 0, BPS_COMPLEX64, BPS_SUM, nullptr);
  EXPECT_ERROR(BPS_UNIMPLEMENTED, fold, nullptr, nullptr, 2, 0, BPS_INT32, BPS_AVERAGE, nullptr);
  EXPECT_ERROR(BPS_INVALID_ARGUMENT, fold, nullptr, nullptr, 0, 0, BPS_FLOAT32, BPS_SUM, nullptr);
}

}  // namespace
}  // namespace byteps::testing
