// Operations of a name that MXNet's engine runs or leaves out: which rounds are given up, and when.

#include "frameworks/mxnet/native/rounds.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "frameworks/common/operation.h"

namespace byteps::mxnet {
namespace {

class RoundsTest : public testing::Test {
 protected:
  void Push() {
    const auto round = static_cast<int>(numbers_.size());
    numbers_.push_back(rounds_.Push([this, round](binding::Done ended) {
      given_up_.push_back(round);
      going_on_.push_back(std::move(ended));
      if (ends_at_once_) EndAll();
    }));
  }
  // The rounds that are being given up have ended.
  void EndAll() {
    for (const binding::Done& ended : std::exchange(going_on_, {})) ended({});
  }
  void Run(int round) {
    rounds_.Run(numbers_.at(round), [this, round] { started_.push_back(round); });
  }
  void Drop(int round) { rounds_.Drop(numbers_.at(round)); }

  Rounds rounds_;
  std::vector<uint64_t> numbers_;
  std::vector<int> given_up_;
  std::vector<int> started_;
  std::vector<binding::Done> going_on_;
  bool ends_at_once_ = true;
};

TEST_F(RoundsTest, WhatRunsIsNotGivenUp) {
  for (int round = 0; round < 3; ++round) Push();
  for (int round = 0; round < 3; ++round) {
    Run(round);
    Drop(round);
  }
  EXPECT_EQ(given_up_, std::vector<int>());
  EXPECT_EQ(started_, (std::vector<int>{0, 1, 2}));
}

TEST_F(RoundsTest, WhatRunsComesBehindRoundsThatAreGivenUp) {
  ends_at_once_ = false;
  for (int round = 0; round < 3; ++round) Push();
  Run(2);
  EXPECT_EQ(given_up_, (std::vector<int>{0, 1}));
  EXPECT_EQ(started_, std::vector<int>());
  EndAll();
  EXPECT_EQ(started_, std::vector<int>{2});
}

TEST_F(RoundsTest, WhatIsDroppedAndHasNotRunIsGivenUp) {
  Push();
  Push();
  Drop(0);
  EXPECT_EQ(given_up_, std::vector<int>{0});
  Run(1);
  Drop(1);
  EXPECT_EQ(given_up_, std::vector<int>{0});
}

// The engine begins what comes next before it drops what it has left out.
TEST_F(RoundsTest, ALaterOneFindsThoseThatWereLeftOut) {
  for (int round = 0; round < 4; ++round) Push();
  Run(0);
  Run(3);
  EXPECT_EQ(given_up_, (std::vector<int>{1, 2}));
  for (int round : {2, 0, 1, 3}) Drop(round);
  EXPECT_EQ(given_up_, (std::vector<int>{1, 2}));
}

TEST_F(RoundsTest, EachNameHasItsOwn) {
  const int first = 0;
  const int second = 0;
  EXPECT_EQ(&Rounds::Of(&first), &Rounds::Of(&first));
  EXPECT_NE(&Rounds::Of(&first), &Rounds::Of(&second));
}

}  // namespace
}  // namespace byteps::mxnet
