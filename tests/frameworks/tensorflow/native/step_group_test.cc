// What a group gives up, of steps that end half-way.

#include "frameworks/tensorflow/native/step_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"

namespace byteps::tensorflow {
namespace {

using binding::Outcome;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class StepGroupTest : public testing::Test {
 protected:
  // A member whose rounds that are given up are told in `given_up_`.
  size_t Add(const std::string& name) { return group_.Add(name, Teller(name)); }

  StepGroup::GiveUp Teller(const std::string& name) {
    return [this, name](uint64_t iteration, const std::string& reason) {
      given_up_.push_back(iteration == 0 ? name : name + " of iteration " + std::to_string(iteration));
      reason_ = reason;
    };
  }

  // Whether the operation is sent.
  bool Begin(size_t member, StepGroup::Step step, uint64_t session = 1) {
    last_ = group_.Begin(member, step, session, Teller("at its beginning"));
    return last_.ok();
  }

  void Fail(StepGroup::Step step, uint64_t session = 1) {
    group_.Fail(step, session, "a", {BPS_FAILED_PRECONDITION, "the ranks disagree"});
  }

  StepGroup group_;
  const size_t a_ = Add("a");
  const size_t b_ = Add("b");
  const size_t c_ = Add("c");
  std::vector<std::string> given_up_;
  std::string reason_;
  Outcome last_;
};

TEST_F(StepGroupTest, GivesNothingUpOfStepsThatRunWhole) {
  for (int64_t step = 1; step <= 20; ++step) {
    for (const size_t member : {b_, a_, c_}) EXPECT_TRUE(Begin(member, {step}));
  }
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(StepGroupTest, AfterAFailureTheRestOfTheStepIsGivenUpAtOnce) {
  EXPECT_TRUE(Begin(a_, {1}));
  EXPECT_TRUE(Begin(c_, {1}));
  Fail({1});
  EXPECT_THAT(given_up_, ElementsAre("b"));
  EXPECT_THAT(reason_, HasSubstr("'a' of the same step failed: the ranks disagree"));
  EXPECT_FALSE(Begin(b_, {1})) << "TensorFlow had it in flight";
  EXPECT_EQ(last_.code, BPS_CANCELLED);
  EXPECT_THAT(last_.message, HasSubstr("the ranks disagree"));
  Fail({1});
  for (const size_t member : {b_, a_, c_}) EXPECT_TRUE(Begin(member, {2}));
  EXPECT_THAT(given_up_, ElementsAre("b"));
}

TEST_F(StepGroupTest, ANewStepGivesUpWhatAnEarlierOneHasLeftOut) {
  EXPECT_TRUE(Begin(b_, {1}));
  EXPECT_TRUE(Begin(b_, {2}));
  EXPECT_THAT(given_up_, ElementsAre("a", "c"));
  EXPECT_FALSE(Begin(a_, {1})) << "the earlier step goes on";
  EXPECT_TRUE(Begin(a_, {2}));
  EXPECT_TRUE(Begin(c_, {2}));
  EXPECT_TRUE(Begin(a_, {3}));
  EXPECT_THAT(given_up_, ElementsAre("a", "c"));
}

TEST_F(StepGroupTest, OfAStepThatHasSentNothingNothingIsGivenUp) {
  Fail({1});
  for (const size_t member : {b_, a_, c_}) EXPECT_TRUE(Begin(member, {2}));
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(StepGroupTest, WhatHasNoKnownShapeIsGivenUpWhenItBegins) {
  const size_t late = group_.Add("late", nullptr);
  for (int64_t step = 1; step <= 2; ++step) {
    EXPECT_TRUE(Begin(a_, {step}));
    Fail({step});
  }
  given_up_.clear();
  EXPECT_TRUE(Begin(late, {3}));
  EXPECT_THAT(given_up_, ElementsAre("at its beginning", "at its beginning"));
  EXPECT_TRUE(Begin(late, {4}));
  EXPECT_THAT(given_up_, ElementsAre("at its beginning", "at its beginning", "a", "b", "c"));
}

TEST_F(StepGroupTest, OfAnEarlierSessionNothingIsGivenUp) {
  const size_t late = group_.Add("late", nullptr);
  EXPECT_TRUE(Begin(a_, {1}));
  EXPECT_TRUE(Begin(a_, {2}));
  given_up_.clear();
  EXPECT_TRUE(Begin(late, {3}, 2));
  Fail({2}, 1);
  EXPECT_THAT(given_up_, IsEmpty());
  Fail({3}, 2);
  EXPECT_THAT(given_up_, ElementsAre("a", "b", "c"));
}

TEST_F(StepGroupTest, IterationsOfALoopMayBeInFlightTogether) {
  EXPECT_TRUE(Begin(a_, {1, 1}));
  EXPECT_TRUE(Begin(a_, {1, 2}));
  EXPECT_TRUE(Begin(b_, {1, 1}));
  EXPECT_THAT(given_up_, IsEmpty());
  Fail({1, 2});
  EXPECT_THAT(given_up_, ElementsAre("b of iteration 2", "c of iteration 2"));
  EXPECT_TRUE(Begin(c_, {1, 1}));
}

TEST_F(StepGroupTest, AFunctionMayBeCalledTwiceInAStep) {
  for (int call = 0; call < 2; ++call) {
    for (const size_t member : {a_, b_, c_}) EXPECT_TRUE(Begin(member, {1}));
  }
  EXPECT_THAT(given_up_, IsEmpty());
  EXPECT_TRUE(Begin(a_, {1}));
  Fail({1});
  EXPECT_THAT(given_up_, ElementsAre("b", "c"));
}

TEST_F(StepGroupTest, AKernelMayBeMadeWhileAStepRuns) {
  EXPECT_TRUE(Begin(a_, {1}));
  const size_t d = Add("d");
  for (const size_t member : {d, b_, c_}) EXPECT_TRUE(Begin(member, {1}));
  EXPECT_TRUE(Begin(d, {2}));
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(StepGroupTest, TheKernelsOfAnotherGraphAreTheSameMembers) {
  EXPECT_EQ(Add("b"), b_);
  EXPECT_EQ(&StepGroup::Of("of a model"), &StepGroup::Of("of a model"));
  EXPECT_NE(&StepGroup::Of("of a model"), &StepGroup::Of("of another"));
}

}  // namespace
}  // namespace byteps::tensorflow
