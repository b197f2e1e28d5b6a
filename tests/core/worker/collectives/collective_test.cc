// What an operation is checked for before any rank hears of it.
#include "core/worker/collectives/collective.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi/byteps.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

TEST(CollectiveTest, InputAndOutputMustNotOverlap) {
  std::vector<int64_t> memory(100);
  Collective asked;
  asked.kind = CollectiveKind::kAllGather;
  asked.set = ProcessSet::All(2);
  asked.name = "x";
  asked.dtype = BPS_INT64;
  asked.shape = {10};
  const auto check = [&](size_t input, size_t output, uint64_t capacity) {
    asked.input = reinterpret_cast<const std::byte*>(&memory[input]);
    asked.output = reinterpret_cast<std::byte*>(&memory[output]);
    asked.capacity = capacity;
    return Check(asked, 0).code();
  };
  constexpr auto kOk = absl::StatusCode::kOk, kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(check(0, 10, 160), kOk);
  EXPECT_EQ(check(20, 0, 160), kOk);
  EXPECT_EQ(check(0, 9, 160), kInvalid);
  EXPECT_EQ(check(19, 0, 160), kInvalid);
  EXPECT_EQ(check(0, 0, 160), kInvalid);
  EXPECT_EQ(check(0, 0, 0), kOk);
  // An output whose end is behind all addresses.
  EXPECT_EQ(check(20, 0, UINT64_MAX), kInvalid);
  EXPECT_EQ(check(20, 0, UINT64_MAX - 8), kInvalid);
}

}  // namespace
}  // namespace byteps
