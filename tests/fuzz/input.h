// input.h - takes apart the bytes of a fuzzer: numbers and pieces, zero and nothing when they are used up.
//
//     Input input(data, size);
//     while (!input.empty()) Say(input.Byte(), input.Piece());
#ifndef BYTEPS_TESTS_FUZZ_INPUT_H_
#define BYTEPS_TESTS_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

namespace byteps::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(std::as_bytes(std::span(data, size))) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    const std::span<const std::byte> taken = Take(1);
    return taken.empty() ? 0 : static_cast<uint8_t>(taken[0]);
  }
  // Its length comes first, as two bytes.
  std::span<const std::byte> Piece() {
    const size_t low = Byte();
    return Take(low | size_t{Byte()} << 8);
  }
  std::span<const std::byte> Take(size_t size) {
    const std::span<const std::byte> taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> rest_;
};

// A property that does not hold ends the process, which is how a fuzzer hears of it.
#define BPS_FUZZ_CHECK(condition)                                                  \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      __builtin_trap();                                                            \
    }                                                                              \
  } while (false)

}  // namespace byteps::fuzz

#endif  // BYTEPS_TESTS_FUZZ_INPUT_H_
