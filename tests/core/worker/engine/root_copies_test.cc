// What a root of a broadcast copies for itself: all of it, in steps, in order, and only where it owes a copy.
#include "core/worker/engine/root_copies.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint32_t kRoot = 3;

class RootCopiesTest : public testing::Test {
 protected:
  // A broadcast from rank kRoot: from `input` to `output`, which are of one size.
  Operation Broadcast(const Bytes& input, Bytes* output) {
    const std::vector<int64_t> shape = {static_cast<int64_t>(input.size())};
    Operation operation;
    operation.asked.tensor = *table_.Declare("w" + std::to_string(names_++), BPS_UINT8, shape);
    operation.asked.kind = wire::Operation::kBroadcast;
    operation.asked.root = kRoot;
    operation.asked.input = input.data();
    operation.asked.output = output->data();
    return operation;
  }
  static Bytes Values(size_t size, size_t seed) {
    Bytes values(size);
    for (size_t i = 0; i < size; ++i) values[i] = static_cast<std::byte>(1 + (i * 7 + i / 251 + seed) % 255);
    return values;
  }

  TensorTable table_;
  int names_ = 0;
};

TEST_F(RootCopiesTest, OnlyTheRootOfABroadcastIntoOtherMemoryOfTheHostOwesOne) {
  const Bytes input = Values(8, 0);
  Bytes output(8);
  const Operation broadcast = Broadcast(input, &output);
  EXPECT_TRUE(RootCopies::Owes(broadcast, kRoot));
  EXPECT_FALSE(RootCopies::Owes(broadcast, kRoot + 1));

  Operation sum = Broadcast(input, &output);
  sum.asked.kind = wire::Operation::kPushPull;
  EXPECT_FALSE(RootCopies::Owes(sum, kRoot));

  Operation in_place = Broadcast(input, &output);
  in_place.asked.input = output.data();
  EXPECT_FALSE(RootCopies::Owes(in_place, kRoot));

  Operation on_a_gpu = Broadcast(input, &output);
  on_a_gpu.asked.output_device.type = BPS_CUDA;  // the device stage copies it
  EXPECT_FALSE(RootCopies::Owes(on_a_gpu, kRoot));

  const Bytes nothing;
  EXPECT_FALSE(RootCopies::Owes(Broadcast(nothing, &output), kRoot));
}

TEST_F(RootCopiesTest, EachStepIsBoundedAndTheLastOneNamesTheOperation) {
  constexpr size_t kRest = 12'345;
  const Bytes input = Values(2 * RootCopies::kStep + kRest, 0);
  Bytes output(input.size() + 1);  // one behind its end, which is not part of it
  Operation operation = Broadcast(input, &output);
  RootCopies copies;
  EXPECT_TRUE(copies.empty());
  copies.Add(&operation);
  EXPECT_FALSE(copies.empty());
  EXPECT_TRUE(copies.Has(operation));
  for (size_t step = 1; step <= 2; ++step) {
    EXPECT_EQ(copies.Run(), nullptr);
    const size_t done = step * RootCopies::kStep;
    EXPECT_NE(output[done - 1], std::byte{0}) << "the step has not been made";
    EXPECT_EQ(output[done], std::byte{0}) << "a step was longer than kStep";
    EXPECT_TRUE(copies.Has(operation));
  }
  EXPECT_EQ(copies.Run(), &operation);
  EXPECT_TRUE(copies.empty());
  EXPECT_FALSE(copies.Has(operation));
  EXPECT_EQ(output.back(), std::byte{0});
  output.pop_back();
  EXPECT_TRUE(output == input);
  EXPECT_EQ(copies.Run(), nullptr);
}

TEST_F(RootCopiesTest, OfWholeStepsNoneIsLeftOver) {
  const Bytes input = Values(RootCopies::kStep, 5);
  Bytes output(input.size());
  Operation operation = Broadcast(input, &output);
  RootCopies copies;
  copies.Add(&operation);
  EXPECT_EQ(copies.Run(), &operation);
  EXPECT_TRUE(output == input);
}

TEST_F(RootCopiesTest, OneAfterTheOther) {
  const Bytes first = Values(RootCopies::kStep + 1, 1), second = Values(10, 2);
  Bytes to_first(first.size()), to_second(second.size());
  Operation one = Broadcast(first, &to_first), two = Broadcast(second, &to_second);
  RootCopies copies;
  copies.Add(&one);
  copies.Add(&two);
  EXPECT_EQ(copies.Run(), nullptr);
  EXPECT_TRUE(copies.Has(two));
  EXPECT_EQ(copies.Run(), &one);
  EXPECT_FALSE(copies.Has(one));
  EXPECT_EQ(copies.Run(), &two);
  EXPECT_TRUE(to_first == first);
  EXPECT_TRUE(to_second == second);
}

TEST_F(RootCopiesTest, WhatIsClearedIsNotTouchedAgain) {
  const Bytes input = Values(RootCopies::kStep + 1, 3);
  Bytes output(input.size());
  Operation operation = Broadcast(input, &output);
  RootCopies copies;
  copies.Add(&operation);
  EXPECT_EQ(copies.Run(), nullptr);
  copies.Clear();
  EXPECT_TRUE(copies.empty());
  EXPECT_FALSE(copies.Has(operation));
  EXPECT_EQ(copies.Run(), nullptr);
  EXPECT_EQ(output.back(), std::byte{0});
}

}  // namespace
}  // namespace byteps
