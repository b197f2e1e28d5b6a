#include "core/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace byteps {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)

// The instruction takes 8 bytes in one cycle and has its result after three: three runs of so many bytes go side by
// side.
constexpr size_t kRun = 4096;

// The checksum of the same bytes with `zeros` zero bytes behind them: a multiplication in the field, by bits.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x to the power of 8 x bytes.
constexpr uint32_t PowerOf(size_t bytes) {
  uint32_t power = 0x80000000u, square = 0x00800000u;  // 1, x^8
  for (size_t left = bytes; left != 0; left >>= 1) {
    if ((left & 1) != 0) power = Multiply(power, square);
    square = Multiply(square, square);
  }
  return power;
}

constexpr uint32_t kPastOne = PowerOf(kRun), kPastTwo = PowerOf(2 * kRun);

uint64_t Load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t ByInstruction(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t state = 0xffffffffu;
  for (; left >= 3 * kRun; left -= 3 * kRun, at += 3 * kRun) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kRun; i += 8) {
      state = _mm_crc32_u64(state, Load(at + i));
      second = _mm_crc32_u64(second, Load(at + kRun + i));
      third = _mm_crc32_u64(third, Load(at + 2 * kRun + i));
    }
    state =
        Multiply(kPastTwo, static_cast<uint32_t>(state)) ^ Multiply(kPastOne, static_cast<uint32_t>(second)) ^ third;
  }
  for (; left >= 8; left -= 8, at += 8) state = _mm_crc32_u64(state, Load(at));
  auto narrow = static_cast<uint32_t>(state);
  for (; left != 0; --left, ++at) narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*at));
  return ~narrow;
}

bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__ARM_FEATURE_CRC32)

uint32_t ByInstruction(std::span<const std::byte> bytes) {
  uint32_t state = 0xffffffffu;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    state = __crc32cd(state, word);
  }
  for (; left != 0; --left, ++at) state = __crc32cb(state, static_cast<uint8_t>(*at));
  return ~state;
}

constexpr bool HasInstruction() { return true; }

#else

uint32_t ByInstruction(std::span<const std::byte> bytes) { return Crc32cByTable(bytes); }
constexpr bool HasInstruction() { return false; }

#endif

}  // namespace

uint32_t Crc32cByTable(std::span<const std::byte> bytes) {
  uint32_t state = 0xffffffffu;
  for (const std::byte byte : bytes) state = (state >> 8) ^ kTable[(state ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~state;
}

uint32_t Crc32c(std::span<const std::byte> bytes) {
  return HasInstruction() ? ByInstruction(bytes) : Crc32cByTable(bytes);
}

}  // namespace byteps
