#include "scheduler_plugins/credit/bound.h"

#include "gtest/gtest.h"

namespace byteps::credit {
namespace {

TEST(BoundTest, PartitionsBytesOrNone) {
  std::string reason;
  EXPECT_EQ(Bound::Parse(nullptr, &reason)->kind, Bound::Kind::kTuned);
  EXPECT_EQ(Bound::Parse("0", &reason)->kind, Bound::Kind::kUnbounded);
  EXPECT_EQ(Bound::Parse("0M", &reason)->kind, Bound::Kind::kUnbounded);
  EXPECT_EQ(Bound::Parse("4", &reason)->Bytes(1000), 4000u);
  EXPECT_EQ(Bound::Parse("4K", &reason)->Bytes(1000), 4096u);
  EXPECT_EQ(Bound::Parse("4kib", &reason)->Bytes(1000), 4096u);
  EXPECT_EQ(Bound::Parse("70b", &reason)->Bytes(1000), 70u);
  EXPECT_EQ(Bound::Parse("2T", &reason)->Bytes(1), uint64_t{2} << 40);
  EXPECT_EQ(Bound::Parse("18446744073709551615", &reason)->Bytes(2), UINT64_MAX);
  EXPECT_EQ(reason, "");
}

TEST(BoundTest, WhatIsNoNumberIsRefusedWithItsText) {
  for (const char* text : {"-1", "many", "1.5", "4KB", "4X", "99999999999999999999", "18446744073709551615T", " 4"}) {
    std::string reason;
    EXPECT_FALSE(Bound::Parse(text, &reason).has_value()) << text;
    EXPECT_EQ(reason.find(std::string("BYTEPS_SCHEDULING_CREDIT=") + text + " is not accepted"), 0u) << reason;
  }
}

}  // namespace
}  // namespace byteps::credit
