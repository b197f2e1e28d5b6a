// What a group gives up, of steps that end half-way.

#include "frameworks/tensorflow/native/step_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/operation.h"

namespace byteps::tensorflow {
namespace {

using binding::Outcome;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class StepGroupTest : public testing::Test {
 protected:
  // A member whose rounds that are given up are told in `given_up_`.
  StepGroup::Place Add(const std::string& name, int64_t graph = 1) { return group_.Add(name, graph, Teller(name)); }

  StepGroup::GiveUp Teller(const std::string& name) {
    return [this, name](uint64_t iteration, const std::string& reason, binding::Done ended) {
      given_up_.push_back(iteration == 0 ? name : name + " of iteration " + std::to_string(iteration));
      reason_ = reason;
      going_on_.push_back(std::move(ended));
      if (ends_at_once_) EndAll();
    };
  }

  // The rounds that are being given up have ended.
  void EndAll() {
    for (const binding::Done& ended : std::exchange(going_on_, {})) ended({BPS_CANCELLED, "given up"});
  }

  // Whether the operation is sent; false, with `waits_`, while rounds before it are given up.
  bool Begin(StepGroup::Place member, StepGroup::Step step, uint64_t session = 1) {
    waits_ = true;
    group_.Begin(member, step, session, Teller("at its beginning"), [this](const Outcome& refused) {
      waits_ = false;
      last_ = refused;
    });
    return !waits_ && last_.ok();
  }

  void Fail(StepGroup::Step step, uint64_t session = 1) {
    group_.Fail(step, session, "a", {BPS_FAILED_PRECONDITION, "the ranks disagree"});
  }

  StepGroup group_;
  const StepGroup::Place a_ = Add("a");
  const StepGroup::Place b_ = Add("b");
  const StepGroup::Place c_ = Add("c");
  std::vector<std::string> given_up_;
  std::string reason_;
  std::vector<binding::Done> going_on_;
  bool ends_at_once_ = true;
  bool waits_ = false;
  Outcome last_;
};

TEST_F(StepGroupTest, GivesNothingUpOfStepsThatRunWhole) {
  for (int64_t step = 1; step <= 20; ++step) {
    for (const StepGroup::Place& member : {b_, a_, c_}) EXPECT_TRUE(Begin(member, {step}));
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
  EXPECT_EQ(last_.code, BPS_FAILED_PRECONDITION) << "what TensorFlow hears first is the cause";
  EXPECT_THAT(last_.message, HasSubstr("the ranks disagree"));
  EXPECT_FALSE(Begin(a_, {1})) << "called again in the same step";
  Fail({1});
  for (const StepGroup::Place& member : {b_, a_, c_}) EXPECT_TRUE(Begin(member, {2}));
  EXPECT_THAT(given_up_, ElementsAre("b"));
}

TEST_F(StepGroupTest, ANewStepGivesUpWhatAnEarlierOneHasLeftOut) {
  EXPECT_TRUE(Begin(b_, {1}));
  EXPECT_TRUE(Begin(b_, {2}));
  EXPECT_THAT(given_up_, ElementsAre("a", "c"));
  EXPECT_FALSE(Begin(a_, {1})) << "the earlier step goes on";
  EXPECT_EQ(last_.code, BPS_CANCELLED);
  EXPECT_TRUE(Begin(a_, {2}));
  EXPECT_TRUE(Begin(c_, {2}));
  EXPECT_TRUE(Begin(a_, {3}));
  EXPECT_THAT(given_up_, ElementsAre("a", "c"));
}

TEST_F(StepGroupTest, OfAStepThatHasSentNothingNothingIsGivenUp) {
  Fail({1});
  for (const StepGroup::Place& member : {b_, a_, c_}) EXPECT_TRUE(Begin(member, {2}));
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(StepGroupTest, WhatHasNoKnownShapeIsGivenUpWhenItBegins) {
  const StepGroup::Place late = group_.Add("late", 1, nullptr);
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
  const StepGroup::Place late = group_.Add("late", 1, nullptr);
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

TEST_F(StepGroupTest, AFunctionMayBeCalledSeveralTimesInAStep) {
  // Its calls overlap: the first member is ahead.
  for (int call = 0; call < 20; ++call) EXPECT_TRUE(Begin(a_, {1}));
  for (int call = 0; call < 20; ++call) EXPECT_TRUE(Begin(b_, {1}));
  for (int call = 0; call < 20; ++call) EXPECT_TRUE(Begin(c_, {1}));
  for (const StepGroup::Place& member : {a_, b_, c_}) EXPECT_TRUE(Begin(member, {2}));
  EXPECT_THAT(given_up_, IsEmpty());
  EXPECT_TRUE(Begin(a_, {2}));
  EXPECT_TRUE(Begin(a_, {2}));
  EXPECT_TRUE(Begin(b_, {2}));
  Fail({2});
  EXPECT_THAT(given_up_, ElementsAre("c", "b", "c")) << "of all calls";
}

TEST_F(StepGroupTest, ManyIterationsOfALoopMayBeInFlightTogether) {
  for (uint64_t iteration = 1; iteration <= 50; ++iteration) EXPECT_TRUE(Begin(a_, {1, iteration}));
  for (uint64_t iteration = 1; iteration <= 50; ++iteration) {
    EXPECT_TRUE(Begin(b_, {1, iteration}));
    EXPECT_TRUE(Begin(c_, {1, iteration}));
  }
  for (const StepGroup::Place& member : {a_, b_, c_}) EXPECT_TRUE(Begin(member, {2}));
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(StepGroupTest, AnOperationComesBehindTheRoundsOfItsNameThatAreGivenUp) {
  const StepGroup::Place late = group_.Add("late", 1, nullptr);
  ends_at_once_ = false;
  EXPECT_TRUE(Begin(a_, {1}));
  EXPECT_TRUE(Begin(a_, {2})) << "its own round was not left out";
  EXPECT_THAT(given_up_, ElementsAre("b", "c"));
  EXPECT_FALSE(Begin(b_, {2}));
  EXPECT_TRUE(waits_);
  EndAll();
  EXPECT_FALSE(waits_);
  EXPECT_TRUE(last_.ok());
  EXPECT_TRUE(Begin(c_, {2}));
  EXPECT_FALSE(Begin(late, {2}));
  EXPECT_TRUE(waits_);
  EXPECT_THAT(given_up_, ElementsAre("b", "c", "at its beginning"));
  EndAll();
  EXPECT_FALSE(waits_);
}

TEST_F(StepGroupTest, AKernelMayBeMadeWhileAStepRuns) {
  EXPECT_TRUE(Begin(a_, {1}));
  const StepGroup::Place d = Add("d");
  for (const StepGroup::Place& member : {d, b_, c_}) EXPECT_TRUE(Begin(member, {1}));
  EXPECT_TRUE(Begin(d, {2}));
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(StepGroupTest, AStepConsistsOfTheMembersOfItsGraph) {
  const StepGroup::Place again = Add("b", 2);
  EXPECT_EQ(again.member, b_.member);
  for (int64_t step = 1; step <= 3; ++step) EXPECT_TRUE(Begin(again, {step}));
  EXPECT_THAT(given_up_, IsEmpty());
  EXPECT_TRUE(Begin(a_, {4}));
  EXPECT_TRUE(Begin(again, {5}));
  EXPECT_THAT(given_up_, ElementsAre("b", "c")) << "of the other graph's step, which has ended";
}

TEST_F(StepGroupTest, EachNameIsAGroup) {
  EXPECT_EQ(&StepGroup::Of("of a model"), &StepGroup::Of("of a model"));
  EXPECT_NE(&StepGroup::Of("of a model"), &StepGroup::Of("of another"));
}

}  // namespace
}  // namespace byteps::tensorflow
