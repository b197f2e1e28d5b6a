#include "frameworks/jax/native/failures.h"

#include <gtest/gtest.h>

#include <string>

#include "abi/byteps.h"

namespace byteps::jax {
namespace {

using binding::Outcome;

TEST(FailuresTest, TheFirstIsKeptUntilItIsTold) {
  Failures failures;
  Outcome first;
  EXPECT_FALSE(failures.First(&first));
  failures.Add({BPS_UNAVAILABLE, "a is gone"});
  failures.Add({BPS_ABORTED, "b was given up"});
  ASSERT_TRUE(failures.First(&first));
  EXPECT_EQ(first.code, BPS_UNAVAILABLE);
  EXPECT_EQ(first.message, "a is gone");
  failures.Told("INTERNAL: something else");
  EXPECT_TRUE(failures.First(&first));
}

TEST(FailuresTest, AnyOfThemTellsOfAll) {
  Failures failures;
  failures.Add({BPS_UNAVAILABLE, "a is gone"});
  failures.Add({BPS_ABORTED, "b was given up"});
  failures.Told("INTERNAL: Error dispatching computation: b was given up");
  Outcome first;
  EXPECT_FALSE(failures.First(&first));
}

TEST(FailuresTest, MoreThanCanBeKept) {
  Failures failures;
  for (int i = 0; i < 100'000; ++i) failures.Add({BPS_ABORTED, "operation " + std::to_string(i) + " was given up"});
  Outcome first;
  ASSERT_TRUE(failures.First(&first));
  EXPECT_EQ(first.message, "operation 0 was given up");
  failures.Told("ABORTED: operation 99999 was given up");
  EXPECT_FALSE(failures.First(&first)) << "the last ones are known, too";
}

}  // namespace
}  // namespace byteps::jax
