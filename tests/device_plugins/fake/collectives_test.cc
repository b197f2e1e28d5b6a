// The collectives of the fake GPUs: several members in one process, each with a device of its own.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/fake/control.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host*, const bps_device_plugin**);

namespace byteps {
namespace {

std::string g_reason;

int32_t Fail(bps_failure*, int32_t code, const char* reason) {
  g_reason = reason;
  return code;
}

class CollectivesTest : public ::testing::TestWithParam<const char*> {
 protected:
  struct Member {
    bps_device* device = nullptr;
    bps_device_stream stream = nullptr;
    bps_device_comm* comm = nullptr;
    float* memory = nullptr;
    float* host = nullptr;
  };

  void Start(int size, size_t count) {
    static bps_plugin_host host = {};
    host.struct_size = sizeof host;
    host.fail = Fail;
    const bps_device_plugin* plugin = nullptr;
    ASSERT_EQ(bps_device_plugin_v1_fake(&host, &plugin), BPS_OK);
    table_ = plugin->table;
    all_ = plugin->collectives;
    ASSERT_EQ(bps_fake_gpu()->reset(("devices=4,seed=5,schedule=" + std::string(GetParam())).c_str()), 1);
    uint8_t id[BPS_DEVICE_COMM_ID] = {};
    ASSERT_EQ(all_->unique_id(nullptr, id, failure()), BPS_OK);
    count_ = count;
    for (int rank = 0; rank < size; ++rank) {
      Member& member = members_.emplace_back();
      bps_device_open_args open = {};
      open.struct_size = sizeof open;
      open.index = rank;
      ASSERT_EQ(table_->open(&open, &member.device, failure()), BPS_OK);
      ASSERT_EQ(table_->stream_create(member.device, 0, &member.stream, failure()), BPS_OK);
      void* base = nullptr;
      ASSERT_EQ(table_->allocate(member.device, count * sizeof(float), &base, failure()), BPS_OK);
      member.memory = static_cast<float*>(base);
      ASSERT_EQ(table_->allocate_host(member.device, count * sizeof(float), &base, failure()), BPS_OK);
      member.host = static_cast<float*>(base);
      for (size_t i = 0; i < count; ++i) member.host[i] = static_cast<float>(rank * 100) + static_cast<float>(i);
      bps_device_join_args args = {};
      args.struct_size = sizeof args;
      args.id = id;
      args.rank = rank;
      args.size = size;
      ASSERT_EQ(all_->join(member.device, &args, &member.comm, failure()), BPS_OK);
      EXPECT_EQ(all_->state(member.comm, failure()), rank + 1 == size ? BPS_OK : BPS_DEVICE_NOT_READY);
      Copy(member, true);
    }
  }
  void TearDown() override {
    for (Member& member : members_) {
      if (member.comm != nullptr) all_->abort(member.comm);
    }
    for (Member& member : members_) {
      table_->release(member.device, member.memory, nullptr);
      table_->release_host(member.device, member.host, nullptr);
      table_->close(member.device);
    }
  }

  static bps_failure* failure() { return reinterpret_cast<bps_failure*>(&g_reason); }
  void Copy(const Member& member, bool down) {
    const uint64_t bytes = count_ * sizeof(float);
    const int32_t code =
        down ? table_->copy_to_device(member.device, member.memory, member.host, bytes, member.stream, failure())
             : table_->copy_to_host(member.device, member.host, member.memory, bytes, member.stream, failure());
    ASSERT_EQ(code, BPS_OK);
  }
  template <typename Body>
  void Unit(const Body& body) {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      ASSERT_EQ(all_->begin(members_[rank].comm, failure()), BPS_OK);
      ASSERT_EQ(body(members_[rank], static_cast<int>(rank)), BPS_OK) << g_reason;
      ASSERT_EQ(all_->end(members_[rank].comm, failure()), BPS_OK);
    }
  }
  // All that is in the streams, one after the other, again and again: they wait for each other.
  bool Drain() {
    std::vector<bps_device_event*> events;
    for (const Member& member : members_) {
      Copy(member, false);
      bps_device_event* event = nullptr;
      EXPECT_EQ(table_->event_create(member.device, &event, failure()), BPS_OK);
      EXPECT_EQ(table_->event_record(member.device, event, member.stream, failure()), BPS_OK);
      events.push_back(event);
    }
    size_t done = 0;
    for (int turn = 0; turn < 1000 && done != events.size(); ++turn) {
      done = 0;
      for (size_t i = 0; i < events.size(); ++i) {
        done += table_->event_query(members_[i].device, events[i], failure()) == BPS_OK ? 1 : 0;
      }
    }
    for (size_t i = 0; i < events.size(); ++i) table_->event_destroy(members_[i].device, events[i], nullptr);
    return done == events.size();
  }

  const bps_device_table* table_ = nullptr;
  const bps_device_collectives* all_ = nullptr;
  std::vector<Member> members_;
  size_t count_ = 0;
};

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
    EXPECT_NE(g_reason.find("all_reduce of 100 elements"), std::string::npos) << g_reason;
    EXPECT_NE(g_reason.find("all_reduce of 99 elements"), std::string::npos) << g_reason;
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

INSTANTIATE_TEST_SUITE_P(Schedules, CollectivesTest, ::testing::Values("late", "early", "random"));

}  // namespace
}  // namespace byteps
