// collectives.h - a suite for the collectives of abi/device.h where the GPUs are simulated: several members in one
// process, each with a device of its own.
//
//     INSTANTIATE_TEST_SUITE_P(Fake, CollectivesTest, testing::ValuesIn(Schedules({bps_device_plugin_v1_fake, ...})));
//
// It is for the simulated GPUs themselves, and for a plugin whose driver has simulated GPUs.
#ifndef BYTEPS_TESTS_DEVICE_PLUGINS_FAKE_COLLECTIVES_H_
#define BYTEPS_TESTS_DEVICE_PLUGINS_FAKE_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"

namespace byteps {

struct CollectivesUnderTest {
  bps_device_plugin_fn entry = nullptr;
  const fake_gpu_control* (*gpus)() = nullptr;  // called before each test
  const char* schedule = "late";
};

inline std::ostream& operator<<(std::ostream& out, const CollectivesUnderTest& each) { return out << each.schedule; }

// One of each schedule.
inline std::vector<CollectivesUnderTest> Schedules(CollectivesUnderTest each) {
  std::vector<CollectivesUnderTest> all;
  for (const char* schedule : {"late", "early", "random"}) {
    each.schedule = schedule;
    all.push_back(each);
  }
  return all;
}

class CollectivesTest : public ::testing::TestWithParam<CollectivesUnderTest> {
 protected:
  struct Member {
    bps_device* device = nullptr;
    bps_device_stream stream = nullptr;
    bps_device_comm* comm = nullptr;
    float* memory = nullptr;
    float* host = nullptr;
  };

  void Start(int size, size_t count) {
    const fake_gpu_control* gpus = GetParam().gpus();
    ASSERT_NE(gpus, nullptr);
    const bps_device_plugin* plugin = nullptr;
    ASSERT_EQ(GetParam().entry(Host(), &plugin), BPS_OK);
    table_ = plugin->table;
    all_ = plugin->collectives;
    ASSERT_EQ(gpus->reset(("devices=4,seed=5,schedule=" + std::string(GetParam().schedule)).c_str()), 1);
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

  // Its failures are strings.
  static const bps_plugin_host* Host() {
    static const bps_plugin_host host = {
        sizeof host, nullptr,
        [](bps_failure* failure, int32_t code, const char* reason) {
          *reinterpret_cast<std::string*>(failure) = reason;
          return code;
        },
        [](const void*, const char* name) -> const char* { return std::getenv(name); }};
    return &host;
  }
  bps_failure* failure() { return reinterpret_cast<bps_failure*>(&reason_); }
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
      ASSERT_EQ(body(members_[rank], static_cast<int>(rank)), BPS_OK) << reason_;
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
  std::string reason_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_DEVICE_PLUGINS_FAKE_COLLECTIVES_H_
