#include "server/membership/tensor_directory.h"

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
  mode.set_mode(7);
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
      {mode, BPS_UNIMPLEMENTED, "no mode 7"},
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

control::TensorSpec Later(control::TensorSpec spec, uint64_t from_round, uint64_t rate) {
  spec.set_from_round(from_round);
  spec.set_bytes_per_second(rate);
  return spec;
}

TEST(TensorDirectoryTest, LaterCutsAreTheSameForAll) {
  PlacementOptions options;
  options.lanes = {1, 1};
  options.slot_bytes = 512 << 10;
  TensorDirectory directory(options);
  const control::TensorSpec spec = Spec("w", {5'000'000});
  const control::Assignment first = directory.Declare(spec, 0);
  EXPECT_EQ(first.next_cut(), 2u);
  // No member knows anything: another cut like the first.
  const control::Assignment second = directory.Declare(Later(spec, 2, 0), 1);
  EXPECT_EQ(second.part_elements(), first.part_elements());
  EXPECT_EQ(second.next_cut(), 4u);
  // A slow worker has been heard of when the first asks for the cut from round 4 on; the rate of the others is theirs.
  EXPECT_EQ(directory.Declare(Later(spec, 2, 20'000'000), 2).SerializeAsString(), second.SerializeAsString());
  const control::Assignment third = directory.Declare(Later(spec, 4, 900'000'000), 0);
  EXPECT_LT(third.part_elements(), first.part_elements() / 2);
  EXPECT_EQ(third.key(), first.key());
  EXPECT_EQ(third.tensor().from_round(), 4u);
  EXPECT_EQ(third.next_cut(), 8u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(directory.Declare(Later(spec, 4, 1000 * rank), rank).SerializeAsString(), third.SerializeAsString());
    EXPECT_EQ(directory.Declare(spec, rank).SerializeAsString(), first.SerializeAsString());
  }
}

// A rank may come late to a name that the others have used under another shape for a long time: no cut is forgotten.
TEST(TensorDirectoryTest, AMemberThatComesLateGetsEveryCut) {
  PlacementOptions options;
  options.lanes = {1, 1};
  options.slot_bytes = 512 << 10;
  TensorDirectory directory(options);
  const control::TensorSpec spec = Spec("w", {5'000'000});
  std::vector<control::Assignment> cuts = {directory.Declare(spec)};
  while (cuts.back().next_cut() < uint64_t{1} << 40) {
    cuts.push_back(directory.Declare(Later(spec, cuts.back().next_cut(), 1'000'000 << cuts.size() % 8)));
    ASSERT_EQ(cuts.back().code(), BPS_OK) << cuts.back().error();
  }
  EXPECT_EQ(cuts.size(), 40u);
  for (const control::Assignment& cut : cuts) {
    const control::Assignment again = directory.Declare(Later(spec, cut.tensor().from_round(), 1), 7);
    EXPECT_EQ(again.SerializeAsString(), cut.SerializeAsString());
  }
}

TEST(TensorDirectoryTest, CutsThatWereNotAnnouncedAreRefused) {
  TensorDirectory directory(Options());
  const control::TensorSpec spec = Spec("w", {100'000});
  EXPECT_NE(directory.Declare(Later(spec, 2, 1)).code(), BPS_OK);  // never declared
  EXPECT_EQ(directory.Declare(spec).next_cut(), 2u);
  EXPECT_NE(directory.Declare(Later(spec, 1, 1)).code(), BPS_OK);
  EXPECT_NE(directory.Declare(Later(spec, 3, 1)).code(), BPS_OK);
  EXPECT_NE(directory.Declare(Later(spec, 4, 1)).code(), BPS_OK);
  EXPECT_EQ(directory.Declare(Later(spec, 2, 1)).code(), BPS_OK);
  EXPECT_NE(directory.Declare(Later(spec, 1, 1)).code(), BPS_OK);
}

TEST(TensorDirectoryTest, WhatCannotBeCutOtherwiseIsNeverCutAgain) {
  TensorDirectory directory(Options());
  EXPECT_EQ(directory.Declare(Spec("small", {10})).next_cut(), 0u);
  EXPECT_EQ(directory.Declare(Spec("small", {100'000})).next_cut(), 0u);  // a second shape
  PlacementOptions options = Options();
  options.partition_bytes = 4096;
  TensorDirectory exact(options);
  EXPECT_EQ(exact.Declare(Spec("w", {100'000})).next_cut(), 0u);
  options = Options();
  EXPECT_NE(TensorDirectory(options).Declare(Spec("w", {100'000})).next_cut(), 0u);
  options.at_home = true;
  EXPECT_EQ(TensorDirectory(options).Declare(Spec("w", {100'000})).next_cut(), 0u);
}

}  // namespace
}  // namespace byteps
