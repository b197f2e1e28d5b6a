#include "tests/device_plugins/fake/collectives.h"

#include <cstdint>
#include <string>

namespace byteps {
namespace {

TEST_P(CollectivesTest, ReduceScatterAndAllGatherInPlace) {
  Start(4, 400);
  Unit([&](const Member& member, int rank) {
    return all_->reduce_scatter(member.comm, member.memory, member.memory + 100 * rank, 100, BPS_FLOAT32, BPS_SUM,
                                member.stream, failure());
  });
  Unit([&](const Member& member, int rank) {
    return all_->all_gather(member.comm, member.memory + 100 * rank, member.memory, 100, BPS_FLOAT32, member.stream,
                            failure());
  });
  ASSERT_TRUE(Drain());
  for (const Member& member : members_) {
    for (size_t i = 0; i < 400; ++i) ASSERT_EQ(member.host[i], 600.0F + 4 * static_cast<float>(i));
  }
}

TEST_P(CollectivesTest, SeveralInOneUnit) {
  Start(3, 300);
  Unit([&](const Member& member, int) {
    int32_t code =
        all_->reduce(member.comm, member.memory, member.memory, 100, BPS_FLOAT32, BPS_MAX, 1, member.stream, failure());
    if (code == BPS_OK) {
      code = all_->broadcast(member.comm, member.memory + 100, member.memory + 100, 100, BPS_FLOAT32, 2, member.stream,
                             failure());
    }
    if (code != BPS_OK) return code;
    return all_->all_reduce(member.comm, member.memory + 200, member.memory + 200, 100, BPS_FLOAT32, BPS_AVERAGE,
                            member.stream, failure());
  });
  ASSERT_TRUE(Drain());
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(members_[1].host[i], 200.0F + static_cast<float>(i));
    EXPECT_EQ(members_[0].host[100 + i], 300.0F + static_cast<float>(i));
    EXPECT_EQ(members_[2].host[200 + i], 300.0F + static_cast<float>(i));
  }
}

TEST_P(CollectivesTest, SendsAndReceivesInARing) {
  Start(3, 20);
  Unit([&](const Member& member, int rank) {
    const int32_t code =
        all_->send(member.comm, member.memory, 10, BPS_FLOAT32, (rank + 1) % 3, member.stream, failure());
    if (code != BPS_OK) return code;
    return all_->receive(member.comm, member.memory + 10, 10, BPS_FLOAT32, (rank + 2) % 3, member.stream, failure());
  });
  ASSERT_TRUE(Drain());
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(members_[static_cast<size_t>(rank)].host[10], (rank + 2) % 3 * 100);
}

TEST_P(CollectivesTest, WhoAsksForOtherThingsIsNamed) {
  Start(2, 100);
  Unit([&](const Member& member, int rank) {
    return all_->all_reduce(member.comm, member.memory, member.memory, rank == 0 ? 100 : 99, BPS_FLOAT32, BPS_SUM,
                            member.stream, failure());
  });
  EXPECT_FALSE(Drain());
  for (const Member& member : members_) {
    EXPECT_EQ(all_->state(member.comm, failure()), BPS_INTERNAL);
    EXPECT_NE(reason_.find("all_reduce of 100 elements"), std::string::npos) << reason_;
    EXPECT_NE(reason_.find("all_reduce of 99 elements"), std::string::npos) << reason_;
  }
}

TEST_P(CollectivesTest, AMemberThatDoesNotComeIsWaitedForUntilTheAbort) {
  Start(2, 100);
  Member& first = members_[0];
  ASSERT_EQ(all_->begin(first.comm, failure()), BPS_OK);
  ASSERT_EQ(
      all_->all_reduce(first.comm, first.memory, first.memory, 100, BPS_FLOAT32, BPS_SUM, first.stream, failure()),
      BPS_OK);
  ASSERT_EQ(all_->end(first.comm, failure()), BPS_OK);
  EXPECT_FALSE(Drain());
  all_->abort(first.comm);
  first.comm = nullptr;
  EXPECT_TRUE(Drain());
}

TEST_P(CollectivesTest, AMemberThatNeverJoinsIsWaitedForUntilTheAbort) {
  Start(1, 10);
  uint8_t id[BPS_DEVICE_COMM_ID] = {};
  ASSERT_EQ(all_->unique_id(nullptr, id, failure()), BPS_OK);
  bps_device_join_args args = {};
  args.struct_size = sizeof args;
  args.id = id;
  args.size = 2;
  bps_device_comm* comm = nullptr;
  ASSERT_EQ(all_->join(members_[0].device, &args, &comm, failure()), BPS_OK);
  for (int turn = 0; turn < 100; ++turn) ASSERT_EQ(all_->state(comm, failure()), BPS_DEVICE_NOT_READY);
  all_->abort(comm);
}

TEST_P(CollectivesTest, WhatTheyDoNotTake) {
  Start(2, 100);
  const Member& first = members_[0];
  const auto ask = [&](uint32_t dtype, int32_t reduction) {
    return all_->all_reduce(first.comm, first.memory, first.memory, 1, dtype, reduction, first.stream, failure());
  };
  EXPECT_EQ(ask(BPS_FLOAT32, BPS_SUM), BPS_FAILED_PRECONDITION) << "outside of a unit";
  ASSERT_EQ(all_->begin(first.comm, failure()), BPS_OK);
  EXPECT_EQ(ask(BPS_COMPLEX64, BPS_SUM), BPS_UNIMPLEMENTED);
  EXPECT_EQ(ask(BPS_INT32, BPS_AVERAGE), BPS_UNIMPLEMENTED);
  EXPECT_EQ(ask(BPS_INT32, BPS_BIT_AND), BPS_UNIMPLEMENTED);
  ASSERT_EQ(all_->end(first.comm, failure()), BPS_OK);
}

}  // namespace
}  // namespace byteps
