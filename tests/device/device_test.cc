#include "tests/device/device_test.h"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/byteps.h"

namespace byteps::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(30);

void Log(void*, int32_t level, const char* file, int32_t line, const char* message) {
  if (level >= BPS_LOG_WARNING) std::fprintf(stderr, "%s:%d: %s\n", file, line, message);
}

int32_t Fail(bps_failure* failure, int32_t code, const char* reason) {
  if (failure != nullptr) reinterpret_cast<Failure*>(failure)->reason = reason;
  return code;
}

const char* Config(const void*, const char* name) { return std::getenv(name); }

constexpr bps_plugin_host kHost = {sizeof(bps_plugin_host), Log, Fail, Config};

}  // namespace

const bps_plugin_host* TestHost() { return &kHost; }

void DeviceTest::SetUp() {
  GetParam().prepare();
  ASSERT_EQ(GetParam().entry(&kHost, &plugin_), BPS_OK);
  ASSERT_NE(plugin_, nullptr);
  if (plugin_->probe(nullptr, failure()) != BPS_OK) GTEST_SKIP() << reason();
  table_ = plugin_->table;
  device_ = Open(0);
  ASSERT_NE(device_, nullptr) << reason();
}

void DeviceTest::TearDown() {
  if (device_ == nullptr) return;
  for (bps_device_event* event : events_) EXPECT_DONE(event_destroy, event);
  for (bps_device_stream stream : streams_) EXPECT_DONE(stream_destroy, stream);
  for (void* base : memory_) EXPECT_DONE(release, base);
  for (void* base : host_memory_) EXPECT_DONE(release_host, base);
  for (bps_device* device : open_) table_->close(device);
}

void DeviceTest::Expect(int32_t expected, int32_t code, const char* call) {
  EXPECT_EQ(code, expected) << call << ": " << reason();
  EXPECT_TRUE(expected <= BPS_OK || !reason().empty()) << call << " gives no reason";
  failure_.reason.clear();
}

bps_device* DeviceTest::Open(int32_t index) {
  bps_device_open_args args = {};
  args.struct_size = sizeof args;
  args.index = index;
  bps_device* device = nullptr;
  if (table_->open(&args, &device, failure()) == BPS_OK) open_.push_back(device);
  return device;
}

void* DeviceTest::Allocate(uint64_t size) {
  void* base = nullptr;
  EXPECT_DONE(allocate, size, &base);
  if (base != nullptr) memory_.push_back(base);
  return base;
}

uint8_t* DeviceTest::AllocateHost(uint64_t size) {
  void* base = nullptr;
  EXPECT_DONE(allocate_host, size, &base);
  if (base != nullptr) host_memory_.push_back(base);
  return static_cast<uint8_t*>(base);
}

bps_device_stream DeviceTest::Stream() {
  bps_device_stream stream = nullptr;
  EXPECT_DONE(stream_create, 0, &stream);
  streams_.push_back(stream);
  return stream;
}

bps_device_event* DeviceTest::Event() {
  bps_device_event* event = nullptr;
  EXPECT_DONE(event_create, &event);
  events_.push_back(event);
  return event;
}

void DeviceTest::Await(bps_device_event* event) {
  for (const auto deadline = Clock::now() + kPatience; Clock::now() < deadline; ::sched_yield()) {
    const int32_t code = table_->event_query(device_, event, failure());
    if (code != BPS_DEVICE_NOT_READY) return Expect(BPS_OK, code, "event_query");
  }
  ADD_FAILURE() << "the event does not come";
}

void DeviceTest::Write(void* to, const std::vector<uint8_t>& bytes) {
  uint8_t* host = AllocateHost(bytes.size());
  std::memcpy(host, bytes.data(), bytes.size());
  bps_device_stream stream = Stream();
  EXPECT_DONE(copy_to_device, to, host, bytes.size(), stream);
  EXPECT_DONE(synchronize, stream);
}

std::vector<uint8_t> DeviceTest::Read(const void* from, uint64_t size) {
  uint8_t* host = AllocateHost(size);
  bps_device_stream stream = Stream();
  EXPECT_DONE(copy_to_host, host, from, size, stream);
  EXPECT_DONE(synchronize, stream);
  return std::vector<uint8_t>(host, host + size);
}

}  // namespace byteps::testing
