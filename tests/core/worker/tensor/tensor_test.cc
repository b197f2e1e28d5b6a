#include "core/worker/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/base/utf8.h"

namespace byteps {
namespace {

using Shape = std::vector<int64_t>;

TEST(TensorTableTest, HandlesAreByNameTypeAndShape) {
  TensorTable table;
  Tensor* tensor = *table.Declare("w", BPS_FLOAT32, Shape{3, 4});
  EXPECT_EQ(*table.Declare("w", BPS_FLOAT32, Shape{3, 4}), tensor);
  Tensor* transposed = *table.Declare("w", BPS_FLOAT32, Shape{4, 3});
  Tensor* half = *table.Declare("w", BPS_FLOAT16, Shape{3, 4});
  EXPECT_NE(transposed, tensor);
  EXPECT_NE(half, tensor);
  EXPECT_EQ(&transposed->name(), &tensor->name());
  EXPECT_EQ(tensor->elements(), 12u);
  EXPECT_EQ(tensor->bytes(), 48u);
  EXPECT_EQ(half->bytes(), 24u);
  EXPECT_EQ(tensor->Describe(), "\"w\" (float32, 3x4)");
  EXPECT_EQ((*table.Declare("s", BPS_INT64, Shape{}))->Describe(), "\"s\" (int64, scalar)");
  EXPECT_EQ(table.Find("w", BPS_FLOAT16, Shape{3, 4}), half);
  EXPECT_EQ(table.Find("v", BPS_FLOAT16, Shape{3, 4}), nullptr);
}

TEST(TensorTableTest, UndeclaredAreToldOnceInOrder) {
  TensorTable table;
  EXPECT_FALSE(table.HasUndeclared());
  Tensor* a = *table.Declare("a", BPS_FLOAT32, Shape{1});
  Tensor* b = *table.Declare("b", BPS_FLOAT32, Shape{1});
  (void)*table.Declare("a", BPS_FLOAT32, Shape{1});
  EXPECT_TRUE(table.HasUndeclared());
  EXPECT_EQ(table.TakeUndeclared(), (std::vector<Tensor*>{a, b}));
  EXPECT_FALSE(table.HasUndeclared());
  EXPECT_LT(a->name().order(), b->name().order());
}

TEST(TensorTableTest, OneOperationPerName) {
  TensorTable table;
  Tensor* a = *table.Declare("a", BPS_FLOAT32, Shape{1});
  Tensor* other_shape = *table.Declare("a", BPS_FLOAT32, Shape{2});
  EXPECT_TRUE(a->name().place().Enter());
  EXPECT_FALSE(other_shape->name().place().Enter());
  a->name().place().Leave();
  EXPECT_TRUE(other_shape->name().place().Enter());
}

TEST(TensorTableTest, EmptyAndHugeShapes) {
  TensorTable table;
  EXPECT_EQ((*table.Declare("zero", BPS_FLOAT32, Shape{5, 0, 7}))->elements(), 0u);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ((*table.Declare("zero", BPS_FLOAT32, Shape{kMax, 0, kMax}))->elements(), 0u);
  EXPECT_TRUE(table.Declare("just", BPS_INT8, Shape{kMax}).ok());
  for (const Shape& shape : {Shape{kMax}, Shape{int64_t{1} << 32, int64_t{1} << 32}, Shape{-1}, Shape(65, 1)}) {
    EXPECT_EQ(table.Declare("w", BPS_FLOAT32, shape).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(table.Declare("w", 0, Shape{1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorTableTest, Names) {
  TensorTable table;
  EXPECT_TRUE(table.Declare("größe.重み/0", BPS_FLOAT32, Shape{1}).ok());
  EXPECT_FALSE(table.Declare("", BPS_FLOAT32, Shape{1}).ok());
  EXPECT_FALSE(table.Declare("\xff", BPS_FLOAT32, Shape{1}).ok());
  EXPECT_FALSE(table.Declare(std::string(5000, 'x'), BPS_FLOAT32, Shape{1}).ok());
}

TEST(Utf8Test, KnowsTheEdges) {
  for (const char* good : {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << testing::PrintToString(std::string(good));
  }
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc1\xbf", "\xc2", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\xffz"}) {
    EXPECT_FALSE(IsUtf8(bad)) << testing::PrintToString(std::string(bad));
  }
}

}  // namespace
}  // namespace byteps
