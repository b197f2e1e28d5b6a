#include "server/reducer/pool.h"

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {
namespace {

constexpr uint64_t kSlot = 4096;
constexpr uint64_t kChunk = 4 * kSlot;

class PoolTest : public testing::Test {
 protected:
  PoolTest() : transport_(Open()) {}
  Transport Open() {
    const sim::SimTransport opened = fabric_.Open("server");
    return Transport::Adopt(opened.table, opened.transport);
  }
  sim::SimFabric fabric_{{}};
  Transport transport_;
};

TEST_F(PoolTest, BlocksAreApartAlignedAndGivenBack) {
  Pool pool(&transport_, 64 * kChunk, kSlot);
  ASSERT_TRUE(pool.ok().ok());
  std::mt19937 random(1);
  std::vector<std::pair<Block, size_t>> blocks;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.size() < 60 && random() % 2 == 0) {
      const size_t bytes = 1 + random() % pool.largest();
      Block block = pool.Take(bytes);
      ASSERT_TRUE(block);
      ASSERT_GE(block.size(), bytes);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 64, 0u);
      ASSERT_NE(block.local().region, nullptr);
      // The whole block belongs to its holder.
      std::memset(block.data(), i & 0xff, block.size());
      blocks.emplace_back(std::move(block), i & 0xff);
    } else if (!blocks.empty()) {
      const size_t at = random() % blocks.size();
      for (size_t byte = 0; byte < blocks[at].first.size(); byte += 97) {
        ASSERT_EQ(static_cast<size_t>(blocks[at].first.data()[byte]), blocks[at].second);
      }
      std::swap(blocks[at], blocks.back());
      blocks.pop_back();
    }
    ASSERT_LE(pool.stats().blocks, pool.stats().chunks);
    ASSERT_LE(pool.stats().windows + pool.stats().chunks, pool.stats().budget);
  }
  blocks.clear();
  EXPECT_EQ(pool.stats().blocks, 0u);
  EXPECT_GT(pool.stats().peak, 0u);
}

TEST_F(PoolTest, TheBudgetIsTheEnd) {
  Pool pool(&transport_, 3 * kChunk, kSlot);
  std::vector<Block> blocks;
  while (Block block = pool.Take(kSlot)) blocks.push_back(std::move(block));
  // One chunk is the reserve, the other two hold four slots each.
  EXPECT_EQ(blocks.size(), 8u);
  EXPECT_EQ(pool.stats().refused, 1u);
  EXPECT_FALSE(pool.Take(1));
  EXPECT_TRUE(pool.short_of_memory());
  // The reserve is still there, once.
  Block reserve = pool.TakeReserve();
  ASSERT_TRUE(reserve);
  EXPECT_EQ(reserve.size(), pool.largest());
  std::memset(reserve.data(), 1, reserve.size());
  EXPECT_FALSE(pool.TakeReserve());
  // Given back, it is the reserve again, and not given out.
  reserve.Reset();
  EXPECT_FALSE(pool.Take(1));
  EXPECT_TRUE(pool.TakeReserve());
}

TEST_F(PoolTest, MemoryMovesBetweenClasses) {
  Pool pool(&transport_, 3 * kChunk, kSlot);
  for (int i = 0; i < 5; ++i) {
    for (size_t bytes : {size_t{1}, size_t{5000}, kSlot, kChunk}) {
      std::vector<Block> blocks;
      while (Block block = pool.Take(bytes)) blocks.push_back(std::move(block));
      EXPECT_EQ(blocks.size(), 2 * kChunk / blocks[0].size()) << bytes;
    }
  }
  EXPECT_FALSE(pool.Take(kChunk + 1));
}

TEST_F(PoolTest, WindowsAndBlocksShareTheBudget) {
  Pool pool(&transport_, 4 * kChunk, kSlot);
  ASSERT_TRUE(pool.ReserveWindows(2 * kChunk));
  EXPECT_FALSE(pool.ReserveWindows(kChunk + 1));
  Block block = pool.Take(kChunk);
  EXPECT_TRUE(block);
  EXPECT_FALSE(pool.Take(1));
  EXPECT_FALSE(pool.ReserveWindows(1));
  pool.GiveWindows(2 * kChunk);
  Block other = pool.Take(kChunk);
  EXPECT_TRUE(other);
  // Memory that was used for blocks becomes windows' when it is not used.
  block.Reset();
  other.Reset();
  EXPECT_EQ(pool.stats().chunks, 3 * kChunk);
  ASSERT_TRUE(pool.ReserveWindows(3 * kChunk));
  EXPECT_EQ(pool.stats().chunks, kChunk);
  pool.GiveWindows(3 * kChunk);
  EXPECT_TRUE(pool.Take(kChunk));
}

TEST_F(PoolTest, TooSmallABudgetIsAnError) {
  Pool pool(&transport_, Pool::Least(kSlot) - 1, kSlot);
  EXPECT_TRUE(absl::IsResourceExhausted(pool.ok())) << pool.ok();
  for (const char* variable : {"(BYTEPS_SLOT_BYTES)", "raise BYTEPS_SERVER_MEMORY"}) {
    EXPECT_NE(pool.ok().message().find(variable), absl::string_view::npos) << pool.ok();
  }
  EXPECT_FALSE(pool.Take(1));
  EXPECT_FALSE(pool.TakeReserve());
}

TEST_F(PoolTest, OddSlotSizes) {
  for (uint64_t slot : {1, 4097, 100000, 1 << 20}) {
    Pool pool(&transport_, 8 * Pool::Least(slot), slot);
    ASSERT_TRUE(pool.ok().ok());
    EXPECT_GE(pool.largest(), 4 * slot);
    std::vector<Block> blocks;
    for (size_t bytes = 1; bytes <= pool.largest(); bytes = bytes * 3 / 2 + 1) {
      blocks.push_back(pool.Take(bytes));
      ASSERT_TRUE(blocks.back()) << slot << " " << bytes;
      ASSERT_GE(blocks.back().size(), bytes);
      std::memset(blocks.back().data(), 1, blocks.back().size());
      if (blocks.size() > 3) blocks.erase(blocks.begin());
    }
  }
}

}  // namespace
}  // namespace byteps
