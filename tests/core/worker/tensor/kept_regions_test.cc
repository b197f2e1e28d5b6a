#include "core/worker/tensor/kept_regions.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using Side = KeptRegions::Side;

// What a transport was told of memory.
struct Told {
  bool full = false;
  uintptr_t registered = 0;  // ever
  std::set<bps_region*> regions;
  std::vector<std::pair<const void*, size_t>> memory;
};

Told* Unwrap(bps_transport* transport) { return reinterpret_cast<Told*>(transport); }

bps_transport_table Table() {
  bps_transport_table table{};
  table.struct_size = sizeof table;
  table.close = [](bps_transport*) {};
  table.caps = [](bps_transport*, bps_transport_caps*) {};
  table.reg = [](bps_transport* transport, void* base, size_t size, bps_region** region, bps_failure*) -> int32_t {
    Told* told = Unwrap(transport);
    if (told->full) return BPS_RESOURCE_EXHAUSTED;
    *region = reinterpret_cast<bps_region*>(++told->registered);
    told->regions.insert(*region);
    told->memory.emplace_back(base, size);
    return BPS_OK;
  };
  table.unreg = [](bps_transport* transport, bps_region* region) {
    EXPECT_EQ(Unwrap(transport)->regions.erase(region), 1u);
  };
  return table;
}

class KeptRegionsTest : public testing::Test {
 protected:
  KeptRegionsTest()
      : table_(Table()), transport_(Transport::Adopt(&table_, reinterpret_cast<bps_transport*>(&told_))) {}

  Tensor* Declare(const char* name) {
    const int64_t shape[] = {100};
    return *tensors_.Declare(name, BPS_FLOAT32, shape);
  }
  // As an operation that ends well does.
  void Use(KeptRegions* kept, const Tensor& tensor, Side side, std::byte* base) {
    kept->Keep(tensor.name(), side, {base, tensor.bytes()}, *kept->Take(tensor.name(), side, {base, tensor.bytes()}));
  }

  Told told_;
  const bps_transport_table table_;
  Transport transport_;
  TensorTable tensors_;
  std::byte memory_[1000];
};

TEST_F(KeptRegionsTest, TheSameMemoryIsRegisteredOnce) {
  const Tensor* tensor = Declare("w");
  {
    KeptRegions kept(&transport_);
    for (int round = 0; round < 5; ++round) {
      Use(&kept, *tensor, Side::kInput, memory_);
      Use(&kept, *tensor, Side::kOutput, memory_ + 500);
    }
    EXPECT_EQ(told_.registered, 2u);
    EXPECT_EQ(kept.size(), 2u);
    EXPECT_EQ(told_.memory[0], std::make_pair(static_cast<const void*>(memory_), size_t{400}));
    EXPECT_EQ(told_.memory[1], std::make_pair(static_cast<const void*>(memory_ + 500), size_t{400}));
  }
  EXPECT_TRUE(told_.regions.empty()) << "gone with it";
}

TEST_F(KeptRegionsTest, TwoThatTakeTurnsAreRegisteredOnce) {
  const Tensor* tensor = Declare("w");
  KeptRegions kept(&transport_);
  for (int round = 0; round < 7; ++round) Use(&kept, *tensor, Side::kOutput, memory_ + round % 2 * 500);
  EXPECT_EQ(told_.registered, 2u);
  EXPECT_EQ(kept.size(), 2u);
}

TEST_F(KeptRegionsTest, AThirdTakesThePlaceOfTheOldest) {
  const Tensor* tensor = Declare("w");
  KeptRegions kept(&transport_);
  Use(&kept, *tensor, Side::kOutput, memory_);
  Use(&kept, *tensor, Side::kOutput, memory_ + 4);
  Use(&kept, *tensor, Side::kOutput, memory_ + 8);
  EXPECT_EQ(told_.registered, 3u);
  EXPECT_EQ(told_.regions.size(), 2u);
  Use(&kept, *tensor, Side::kOutput, memory_ + 4);
  Use(&kept, *tensor, Side::kOutput, memory_ + 8);
  EXPECT_EQ(told_.registered, 3u);
  Use(&kept, *tensor, Side::kOutput, memory_);
  EXPECT_EQ(told_.registered, 4u);
}

TEST_F(KeptRegionsTest, EachTensorHasItsOwn) {
  const Tensor* first = Declare("w");
  const Tensor* second = Declare("v");
  KeptRegions kept(&transport_);
  for (int round = 0; round < 3; ++round) {
    Use(&kept, *first, Side::kOutput, memory_);
    Use(&kept, *second, Side::kOutput, memory_);
  }
  EXPECT_EQ(told_.registered, 2u);
}

TEST_F(KeptRegionsTest, WhatAnOperationDoesNotGiveBackIsNotGivenAgain) {
  const Tensor* tensor = Declare("w");
  KeptRegions kept(&transport_);
  Use(&kept, *tensor, Side::kOutput, memory_);
  { const Region failed = *kept.Take(tensor->name(), Side::kOutput, {memory_, 400}); }
  EXPECT_TRUE(told_.regions.empty()) << "the fence";
  EXPECT_EQ(kept.size(), 0u);
  Use(&kept, *tensor, Side::kOutput, memory_);
  EXPECT_EQ(told_.registered, 2u);
  kept.Keep(tensor->name(), Side::kOutput, {memory_ + 4, 400}, Region());
  EXPECT_EQ(told_.regions.size(), 1u);
  EXPECT_EQ(kept.size(), 1u) << "no registration replaces nothing";
}

TEST_F(KeptRegionsTest, ARefusalIsTheTransports) {
  const Tensor* tensor = Declare("w");
  KeptRegions kept(&transport_);
  told_.full = true;
  EXPECT_EQ(kept.Take(tensor->name(), Side::kOutput, {memory_, 400}).status().code(),
            absl::StatusCode::kResourceExhausted);
  told_.full = false;
  Use(&kept, *tensor, Side::kOutput, memory_);
  EXPECT_EQ(told_.registered, 1u);
}

// Names may be without end, and room is not.
TEST_F(KeptRegionsTest, ThereIsABound) {
  KeptRegions kept(&transport_);
  std::vector<Tensor*> tensors;
  for (size_t i = 0; i < KeptRegions::kMost + 100; ++i) {
    tensors.push_back(Declare(("w" + std::to_string(i)).c_str()));
    Use(&kept, *tensors.back(), Side::kOutput, memory_);
    ASSERT_LE(kept.size(), KeptRegions::kMost);
    ASSERT_EQ(kept.size(), told_.regions.size());
  }
  const uintptr_t before = told_.registered;
  for (size_t i = tensors.size() - 100; i < tensors.size(); ++i) Use(&kept, *tensors[i], Side::kOutput, memory_);
  EXPECT_EQ(told_.registered, before) << "those that are used are kept";
}

// Of one name, that is.
TEST_F(KeptRegionsTest, AnotherShapeIsOtherMemory) {
  KeptRegions kept(&transport_);
  for (int64_t elements = 1; elements < 200; ++elements) {
    const int64_t shape[] = {elements};
    Use(&kept, **tensors_.Declare("w", BPS_FLOAT32, shape), Side::kOutput, memory_);
    EXPECT_EQ(told_.memory.back().second, static_cast<size_t>(elements) * 4);
  }
  EXPECT_EQ(told_.registered, 199u);
  EXPECT_EQ(kept.size(), 2u);
  EXPECT_EQ(told_.regions.size(), 2u);
}

}  // namespace
}  // namespace byteps
