// Streams and events: what is ordered, what a wait is for, what a stream tells of itself.

#include <cstring>
#include <vector>

#include "abi/byteps.h"
#include "tests/device/device_test.h"

namespace byteps::testing {
namespace {

constexpr uint64_t kSize = 1 << 20;

TEST_P(DeviceTest, AnEventThatWasNeverRecordedIsNothing) {
  bps_device_event* event = Event();
  EXPECT_EQ(table_->event_query(device_, event, failure()), BPS_OK);
  bps_device_stream stream = Stream();
  EXPECT_DONE(stream_wait, stream, event);
  EXPECT_DONE(synchronize, stream);
}

TEST_P(DeviceTest, AnEventSaysThatTheWorkBeforeItHasEnded) {
  auto* memory = static_cast<uint8_t*>(Allocate(kSize));
  uint8_t* host = AllocateHost(kSize);
  bps_device_stream stream = Stream();
  bps_device_event* event = Event();
  for (uint8_t round = 1; round < 20; ++round) {
    EXPECT_DONE(fill, memory, round, kSize, stream);
    EXPECT_DONE(copy_to_host, host, memory, kSize, stream);
    EXPECT_DONE(event_record, event, stream);
    Await(event);
    EXPECT_EQ(host[0], round);
    EXPECT_EQ(host[kSize - 1], round);
    EXPECT_EQ(std::memcmp(host, host + 1, kSize - 1), 0);
  }
}

TEST_P(DeviceTest, AStreamWaitsForAnother) {
  auto* memory = static_cast<uint8_t*>(Allocate(kSize));
  uint8_t* host = AllocateHost(kSize);
  bps_device_stream first = Stream(), second = Stream();
  bps_device_event *filled = Event(), *copied = Event();
  for (uint8_t round = 1; round < 20; ++round) {
    EXPECT_DONE(fill, memory, round, kSize, first);
    EXPECT_DONE(event_record, filled, first);
    EXPECT_DONE(stream_wait, second, filled);
    EXPECT_DONE(copy_to_host, host, memory, kSize, second);
    EXPECT_DONE(event_record, copied, second);
    EXPECT_DONE(stream_wait, first, copied);
    Await(copied);
    EXPECT_EQ(host[0], round);
    EXPECT_EQ(std::memcmp(host, host + 1, kSize - 1), 0);
  }
}

TEST_P(DeviceTest, AWaitIsForTheRecordBeforeIt) {
  auto* memory = static_cast<uint8_t*>(Allocate(kSize));
  auto* other = static_cast<uint8_t*>(Allocate(kSize));
  uint8_t* host = AllocateHost(kSize);
  bps_device_stream first = Stream(), second = Stream();
  bps_device_event *event = Event(), *copied = Event();
  EXPECT_DONE(fill, memory, 1, kSize, first);
  EXPECT_DONE(event_record, event, first);
  EXPECT_DONE(stream_wait, second, event);
  // Recorded again, behind other work: the wait above stays what it is.
  EXPECT_DONE(fill, other, 2, kSize, first);
  EXPECT_DONE(event_record, event, first);
  EXPECT_DONE(copy_to_host, host, memory, kSize, second);
  EXPECT_DONE(event_record, copied, second);
  Await(copied);
  EXPECT_EQ(host[kSize / 2], 1);
  Await(event);
  EXPECT_EQ(Read(other, 1)[0], 2);
}

TEST_P(DeviceTest, TheDefaultStreamTakesWork) {
  auto* memory = static_cast<uint8_t*>(Allocate(64));
  uint8_t* host = AllocateHost(64);
  bps_device_event* event = Event();
  EXPECT_DONE(fill, memory, 5, 64, nullptr);
  EXPECT_DONE(copy_to_host, host, memory, 64, nullptr);
  EXPECT_DONE(event_record, event, nullptr);
  Await(event);
  EXPECT_EQ(host[63], 5);
}

TEST_P(DeviceTest, AStreamSaysWhoseItIs) {
  bps_device_stream urgent = nullptr;
  EXPECT_DONE(stream_create, 1, &urgent);
  for (bps_device_stream stream : {Stream(), urgent, bps_device_stream{nullptr}}) {
    bps_device_stream_state state = {};
    state.struct_size = sizeof state;
    EXPECT_DONE(stream_state, stream, &state);
    EXPECT_EQ(state.id, 0);
    EXPECT_EQ(state.capturing, 0);
  }
  EXPECT_DONE(stream_destroy, urgent);
}

TEST_P(DeviceTest, ClosingEndsTheWorkOfItsStreams) {
  auto* memory = static_cast<uint8_t*>(Allocate(64));
  bps_device_open_args args = {};
  args.struct_size = sizeof args;
  bps_device* other = nullptr;
  Expect(BPS_OK, table_->open(&args, &other, failure()), "open");
  bps_device_stream stream = nullptr;
  Expect(BPS_OK, table_->stream_create(other, 0, &stream, failure()), "stream_create");
  Expect(BPS_OK, table_->fill(other, memory, 9, 64, stream, failure()), "fill");
  table_->close(other);
  EXPECT_EQ(Read(memory, 64), std::vector<uint8_t>(64, 9));
}

TEST_P(DeviceTest, AStreamOfAnotherDeviceSaysSo) {
  int32_t count = 0;
  Expect(BPS_OK, plugin_->count(nullptr, &count, failure()), "count");
  if (count < 2) GTEST_SKIP() << "one device";
  bps_device* other = Open(1);
  bps_device_stream stream = nullptr;
  Expect(BPS_OK, table_->stream_create(other, 0, &stream, failure()), "stream_create");
  bps_device_stream_state state = {};
  state.struct_size = sizeof state;
  EXPECT_DONE(stream_state, stream, &state);
  EXPECT_EQ(state.id, 1);
  Expect(BPS_OK, table_->stream_destroy(other, stream, failure()), "stream_destroy");
}

}  // namespace
}  // namespace byteps::testing
