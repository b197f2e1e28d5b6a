#include "core/base/crc32c.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace byteps {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// RFC 3720, B.4, and the usual check value.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(BytesOf("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
}

TEST(Crc32c, TheInstructionAndTheTableAgree) {
  std::mt19937_64 random(3);
  std::vector<std::byte> bytes(70'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const size_t size : {1u, 7u, 8u, 9u, 4096u, 12287u, 12288u, 12289u, 24577u, 65'536u, 69'000u}) {
    for (const size_t from : {0u, 1u, 5u}) {
      const std::span<const std::byte> part = std::span(bytes).subspan(from, size);
      EXPECT_EQ(Crc32c(part), Crc32cByTable(part)) << size << " from " << from;
    }
  }
}

TEST(Crc32c, EveryFlippedBitIsFound) {
  std::vector<std::byte> bytes(1000);
  const uint32_t whole = Crc32c(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ASSERT_NE(Crc32c(bytes), whole) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

// A figure for the changelog, not a bound.
TEST(Crc32c, Speed) {
  const std::vector<std::byte> bytes(512 << 10, std::byte{7});
  uint32_t all = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 400; ++i) all ^= Crc32c(bytes) + static_cast<uint32_t>(i);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%.1f GB/s (%u)\n", 400 * 512e-6 * 1.024 / took.count(), all & 1);
}

}  // namespace
}  // namespace byteps
