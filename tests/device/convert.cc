// Conversions: the bits of the host's factors and of its 16-bit floats, within the device and from and to pinned
// memory.

#include <bit>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/reduce/dtype.h"
#include "core/worker/collectives/scale.h"
#include "tests/device/device_test.h"

namespace byteps::testing {
namespace {

struct Pair {
  uint32_t from;
  uint32_t to;
};

constexpr Pair kPairs[] = {{BPS_FLOAT32, BPS_FLOAT32},   {BPS_FLOAT64, BPS_FLOAT64}, {BPS_FLOAT16, BPS_FLOAT16},
                           {BPS_BFLOAT16, BPS_BFLOAT16}, {BPS_FLOAT32, BPS_FLOAT16}, {BPS_FLOAT32, BPS_BFLOAT16},
                           {BPS_FLOAT16, BPS_FLOAT32},   {BPS_BFLOAT16, BPS_FLOAT32}};

size_t BytesOf(uint32_t dtype) { return ((dtype >> 8) & 0xff) / 8; }

bool IsNan(uint32_t dtype, const uint8_t* element) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, BytesOf(dtype));
  if (dtype == BPS_FLOAT16) return (bits & 0x7FFF) > 0x7C00;
  if (dtype == BPS_BFLOAT16) return (bits & 0x7FFF) > 0x7F80;
  if (dtype == BPS_FLOAT32) return (bits & 0x7FFFFFFF) > 0x7F800000;
  return (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000;
}

template <typename From, typename To, typename Function>
std::vector<uint8_t> Each(const std::vector<uint8_t>& from, const Function& function) {
  std::vector<uint8_t> to(from.size() / sizeof(From) * sizeof(To));
  for (size_t i = 0; i < from.size() / sizeof(From); ++i) {
    From value;
    std::memcpy(&value, &from[i * sizeof value], sizeof value);
    const To stored = function(value);
    std::memcpy(&to[i * sizeof stored], &stored, sizeof stored);
  }
  return to;
}

// As the host does it: the product first, in float32, then the cast.
std::vector<uint8_t> OnHost(Pair pair, std::vector<uint8_t> from, double factor) {
  const size_t count = from.size() / BytesOf(pair.from);
  if (factor != 1 && (pair.from == BPS_FLOAT32 || pair.from == pair.to)) {
    Scale(pair.from, factor, from.data(), from.data(), count);
  }
  const auto half = static_cast<float>(pair.from != BPS_FLOAT32 ? factor : 1);
  if (pair.to == pair.from) return from;
  if (pair.to == BPS_FLOAT16) return Each<float, Float16>(from, [](float value) { return ToFloat16(value); });
  if (pair.to == BPS_BFLOAT16) return Each<float, BFloat16>(from, [](float value) { return ToBFloat16(value); });
  const auto times = [half](float value) { return half == 1 ? value : value * half; };
  if (pair.from == BPS_FLOAT16) {
    return Each<Float16, float>(from, [&](Float16 value) { return times(ToFloat(value)); });
  }
  return Each<BFloat16, float>(from, [&](BFloat16 value) { return times(ToFloat(value)); });
}

// All kinds of numbers: those of 16 bits completely; of the others random ones, and the neighbourhood of what 16 bits
// can hold, ties among them.
std::vector<uint8_t> Elements(uint32_t dtype) {
  std::vector<uint8_t> bytes;
  const auto add = [&](auto value) {
    const size_t end = bytes.size();
    bytes.resize(end + sizeof value);
    std::memcpy(&bytes[end], &value, sizeof value);
  };
  std::mt19937_64 random(dtype);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (BytesOf(dtype) == 2) add(static_cast<uint16_t>(bits));
    if (dtype == BPS_FLOAT64) add(static_cast<uint64_t>(random()));
    if (dtype != BPS_FLOAT32) continue;
    const uint32_t near = std::bit_cast<uint32_t>(ToFloat(Float16{static_cast<uint16_t>(bits)}));
    for (const uint32_t each : {near, near + 0x1000, near + 0xFFF, near + 0x1001, bits << 16, (bits << 16) + 0x8000,
                                (bits << 16) + 0x7FFF, static_cast<uint32_t>(random())}) {
      add(each);
    }
  }
  return bytes;
}

void ExpectEqual(Pair pair, const std::vector<uint8_t>& is, const std::vector<uint8_t>& expected) {
  const size_t size = BytesOf(pair.to);
  for (size_t at = 0; at < expected.size(); at += size) {
    // Which NaN a product is is the processor's affair.
    if (IsNan(pair.to, &expected[at]) && IsNan(pair.to, &is[at])) continue;
    ASSERT_EQ(std::memcmp(&is[at], &expected[at], size), 0) << "element " << at / size;
  }
}

#define SKIP_WITHOUT_CONVERSIONS()                                                                      \
  if (table_->struct_size < offsetof(bps_device_table, convert) + sizeof table_->convert ||             \
      table_->convert == nullptr) {                                                                     \
    GTEST_SKIP() << "this plugin has no conversions";                                                   \
  }                                                                                                     \
  if (table_->convert(device_, nullptr, BPS_FLOAT16, nullptr, BPS_FLOAT32, 0, 1, nullptr, failure()) == \
      BPS_UNIMPLEMENTED) {                                                                              \
    GTEST_SKIP() << reason();                                                                           \
  }

// Where a conversion reads and writes.
enum class Way { kWithin, kInPlace, kToHost, kFromHost };

TEST_P(DeviceTest, ConvertsToTheBitsOfTheCpu) {
  SKIP_WITHOUT_CONVERSIONS();
  for (const Pair pair : kPairs) {
    const std::vector<uint8_t> elements = Elements(pair.from);
    const size_t count = elements.size() / BytesOf(pair.from), bytes = count * BytesOf(pair.to);
    int turn = 0;
    for (const double factor : {1.0, 0.3, -4.0, 1e-6}) {
      const std::vector<uint8_t> expected = OnHost(pair, elements, factor);
      for (const Way way : {Way::kWithin, Way::kInPlace, Way::kToHost, Way::kFromHost}) {
        if (way == Way::kInPlace && pair.from != pair.to) continue;
        if (way != Way::kInPlace && ++turn % 2 == 0 && factor != 1) continue;  // half of them will do
        SCOPED_TRACE("from " + std::to_string(pair.from) + " to " + std::to_string(pair.to) + ", factor " +
                     std::to_string(factor) + ", way " + std::to_string(static_cast<int>(way)));
        bps_device_stream stream = Stream();
        void* from = way == Way::kFromHost ? AllocateHost(elements.size()) : Allocate(elements.size());
        if (way == Way::kFromHost) {
          std::memcpy(from, elements.data(), elements.size());
        } else {
          Write(from, elements);
        }
        void* to = way == Way::kInPlace ? from : (way == Way::kToHost ? AllocateHost(bytes) : Allocate(bytes));
        EXPECT_DONE(convert, to, pair.to, from, pair.from, count, factor, stream);
        EXPECT_DONE(synchronize, stream);
        const auto* host = static_cast<const uint8_t*>(to);
        ASSERT_NO_FATAL_FAILURE(ExpectEqual(
            pair, way == Way::kToHost ? std::vector<uint8_t>(host, host + bytes) : Read(to, bytes), expected));
      }
    }
  }
}

// Without a product a NaN keeps what it says, on every processor.
TEST_P(DeviceTest, ACastKeepsNans) {
  SKIP_WITHOUT_CONVERSIONS();
  for (const Pair pair : kPairs) {
    if (pair.from == pair.to || pair.to == BPS_FLOAT32) continue;
    std::vector<uint8_t> elements;
    for (const uint32_t bits : {0x7FC00000u, 0x7F800001u, 0xFFABE000u, 0x7FFFFFFFu}) {
      elements.resize(elements.size() + 4);
      std::memcpy(&elements[elements.size() - 4], &bits, 4);
    }
    void* from = Allocate(elements.size());
    Write(from, elements);
    void* to = Allocate(8);
    bps_device_stream stream = Stream();
    EXPECT_DONE(convert, to, pair.to, from, BPS_FLOAT32, 4, 1, stream);
    EXPECT_DONE(synchronize, stream);
    EXPECT_EQ(Read(to, 8), OnHost(pair, elements, 1)) << pair.to;
  }
}

TEST_P(DeviceTest, ConversionsThatThereAreNot) {
  SKIP_WITHOUT_CONVERSIONS();
  for (const auto& [from, to] : {Pair{BPS_FLOAT64, BPS_FLOAT16}, Pair{BPS_FLOAT16, BPS_BFLOAT16},
                                 Pair{BPS_INT32, BPS_INT32}, Pair{BPS_COMPLEX64, BPS_COMPLEX64}, Pair{0, 0}}) {
    EXPECT_ERROR(BPS_UNIMPLEMENTED, convert, nullptr, to, nullptr, from, 0, 1, nullptr);
  }
  EXPECT_DONE(convert, nullptr, BPS_FLOAT32, nullptr, BPS_FLOAT32, 0, 0.5, nullptr);
}

}  // namespace
}  // namespace byteps::testing
