#include "server/tensor_directory.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "abi/byteps.h"

namespace byteps {
namespace {

PlacementOptions Options() {
  PlacementOptions options;
  options.lanes = {2, 2};
  options.slot_bytes = 64 << 10;
  return options;
}

control::TensorSpec Spec(const std::string& name, std::vector<int64_t> shape, uint32_t dtype = BPS_FLOAT32) {
  control::TensorSpec spec;
  spec.set_name(name);
  spec.set_dtype(dtype);
  for (const int64_t extent : shape) spec.add_shape(extent);
  return spec;
}

TEST(TensorDirectoryTest, ANameHasOneIdAndManyVariants) {
  TensorDirectory directory(Options());
  const control::Assignment a = directory.Declare(Spec("a", {100}));
  const control::Assignment b = directory.Declare(Spec("b", {100}));
  const control::Assignment other_shape = directory.Declare(Spec("a", {10, 10}));
  const control::Assignment other_type = directory.Declare(Spec("a", {100}, BPS_FLOAT16));
  EXPECT_NE(a.key() >> 16, 0u);
  EXPECT_NE(a.key() >> 16, b.key() >> 16);
  EXPECT_EQ(a.key() >> 16, other_shape.key() >> 16);
  EXPECT_EQ((std::set<uint64_t>{a.key(), other_shape.key(), other_type.key()}).size(), 3u);
  EXPECT_EQ(directory.Declare(Spec("a", {100})).SerializeAsString(), a.SerializeAsString());
  EXPECT_EQ(directory.names(), 2u);
}

TEST(TensorDirectoryTest, EdgesOfShape) {
  TensorDirectory directory(Options());
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0}, {1 << 20, 1 << 20, 0}, {1}}) {
    const control::Assignment answer = directory.Declare(Spec("t", shape));
    EXPECT_EQ(answer.code(), BPS_OK) << answer.error();
    ASSERT_EQ(answer.runs_size(), 1);
    EXPECT_EQ(answer.runs(0).parts(), 1u);
    EXPECT_GE(answer.part_elements(), 1u);
  }
}

TEST(TensorDirectoryTest, WhatCannotBeIsRefusedByNameAndForgotten) {
  control::TensorSpec set = Spec("t", {1});
  set.set_process_set(1);
  control::TensorSpec mode = Spec("t", {1});
  mode.set_mode(BPS_MODE_ASYNCHRONOUS);
  const struct {
    control::TensorSpec spec;
    int32_t code;
    const char* words;
  } cases[] = {
      {Spec("", {1}), BPS_INVALID_ARGUMENT, "needs a name"},
      {Spec(std::string(5000, 'n'), {1}), BPS_INVALID_ARGUMENT, "5000 bytes"},
      {Spec("t", {-1}), BPS_INVALID_ARGUMENT, "-1"},
      {Spec("t", {0, -7}), BPS_INVALID_ARGUMENT, "-7"},
      {Spec("t", {1}, 12345), BPS_INVALID_ARGUMENT, "no data type 12345"},
      {Spec("t", std::vector<int64_t>(65, 1)), BPS_INVALID_ARGUMENT, "65 dimensions"},
      {Spec("t", {INT64_MAX, INT64_MAX}), BPS_INVALID_ARGUMENT, "larger than"},
      {Spec("t", {INT64_MAX}), BPS_INVALID_ARGUMENT, "larger than"},
      {Spec("t", std::vector<int64_t>(40, 1 << 30)), BPS_INVALID_ARGUMENT, "larger than"},
      {Spec("t", {int64_t{1} << 40}), BPS_RESOURCE_EXHAUSTED, "BYTEPS_PARTITION_BYTES"},
      {set, BPS_UNIMPLEMENTED, "process sets"},
      {mode, BPS_UNIMPLEMENTED, "synchronous"},
  };
  TensorDirectory directory(Options());
  for (const auto& each : cases) {
    const control::Assignment answer = directory.Declare(each.spec);
    EXPECT_EQ(answer.code(), each.code) << each.words;
    EXPECT_NE(answer.error().find(each.words), std::string::npos) << answer.error();
    EXPECT_NE(answer.error().find("tensor \"" + each.spec.name().substr(0, 200)), std::string::npos);
    EXPECT_EQ(answer.runs_size(), 0);
    EXPECT_EQ(answer.tensor().SerializeAsString(), each.spec.SerializeAsString());
  }
  EXPECT_EQ(directory.names(), 0u);
}

TEST(TensorDirectoryTest, VariantsOfANameAreBounded) {
  TensorDirectory directory(Options());
  for (int64_t i = 0; i < int64_t{TensorDirectory::kMaxVariants}; ++i) {
    ASSERT_EQ(directory.Declare(Spec("t", {i})).code(), BPS_OK) << i;
  }
  const control::Assignment answer = directory.Declare(Spec("t", {1 << 20}));
  EXPECT_EQ(answer.code(), BPS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(directory.Declare(Spec("t", {7})).code(), BPS_OK);
}

}  // namespace
}  // namespace byteps
