#include "transport_plugins/common/face.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "abi/transport.h"
#include "tests/transport_plugins/common/plugin_host.h"

namespace byteps::transports {
namespace {

// The least a transport has; what it is asked ends in an exception, or in what is written down here.
class Plain {
 public:
  explicit Plain(const Host& host) : host_(host) {}

  const Host& host() const { return host_; }
  void Caps(bps_transport_caps*) const {}
  void WriteAddress(void*, size_t* size) const { *size = 0; }
  int32_t Connect(const bps_connect_args& args, std::string* reason) {
    if (args.peer == 1) throw std::bad_alloc();
    if (args.peer == 2) throw std::runtime_error("what it was");
    *reason = "nobody is there";
    return args.peer == 3 ? BPS_UNAVAILABLE : BPS_OK;
  }
  int32_t Disconnect(bps_peer) { throw std::bad_alloc(); }
  int32_t Reg(void* base, size_t, bps_region** region, std::string* reason) {
    *region = static_cast<bps_region*>(base);
    *reason = "no more regions";
    return base == nullptr ? BPS_RESOURCE_EXHAUSTED : BPS_OK;
  }
  void Unreg(bps_region*) { throw std::runtime_error("never mind"); }
  int32_t ExportKey(bps_region*, bps_peer, void*) { throw std::runtime_error("a defect"); }
  int32_t PostSend(bps_peer, const void*, size_t, uint64_t) { return BPS_TRANSPORT_AGAIN; }
  int32_t PostWrite(bps_peer, const bps_local&, size_t, const bps_remote&, uint32_t, uint64_t) { return BPS_OK; }
  size_t Poll(bps_event*, size_t) { throw std::bad_alloc(); }
  void Release(uint64_t) {}
  int32_t WaitFd() const { return -1; }
  int32_t Arm() { return BPS_OK; }

 private:
  const Host host_;
};

class Reading : public Plain {
 public:
  using Plain::Plain;
  int32_t PostRead(bps_peer, const bps_local&, size_t, const bps_remote&, uint64_t) { return BPS_OK; }
  int32_t CopyFrom(bps_peer, const bps_remote&, void*, size_t) { return BPS_NOT_FOUND; }
};

constexpr bps_transport_table kPlain = Face<Plain>::Table(nullptr);
constexpr bps_transport_table kReading = Face<Reading>::Table(nullptr);

class FaceTest : public ::testing::Test {
 protected:
  PluginHost library_;
  Plain plain_{Host(library_.table(), &library_, &library_)};
  bps_transport* const transport_ = reinterpret_cast<bps_transport*>(&plain_);
  bps_failure failure_;

  int32_t Connect(bps_peer peer) {
    bps_connect_args args{};
    args.struct_size = sizeof args;
    args.peer = peer;
    return kPlain.connect(transport_, &args, &failure_);
  }
};

TEST_F(FaceTest, OptionalFunctionsAreThoseThatTheClassHas) {
  EXPECT_EQ(kPlain.struct_size, sizeof(bps_transport_table));
  EXPECT_EQ(kPlain.post_read, nullptr);
  EXPECT_EQ(kPlain.copy_from, nullptr);
  EXPECT_EQ(kPlain.map_remote, nullptr);
  EXPECT_EQ(kPlain.allocate, nullptr);
  EXPECT_EQ(kPlain.reg_shared, nullptr);
  EXPECT_EQ(kPlain.begin_write, nullptr);
  EXPECT_NE(kReading.post_read, nullptr);
  EXPECT_NE(kReading.copy_from, nullptr);
  EXPECT_EQ(kReading.copy_to, nullptr);
}

TEST_F(FaceTest, NoExceptionGetsOut) {
  EXPECT_EQ(Connect(1), BPS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(failure_.reason, "out of memory");
  EXPECT_EQ(Connect(2), BPS_INTERNAL);
  EXPECT_EQ(failure_.reason, "what it was");
  EXPECT_EQ(kPlain.disconnect(transport_, 1), BPS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(kPlain.export_key(transport_, nullptr, 1, nullptr), BPS_INTERNAL);
  EXPECT_EQ(kPlain.poll(transport_, nullptr, 0), 0u);
  kPlain.unreg(transport_, nullptr);
}

TEST_F(FaceTest, AFailureHasItsReasonAndASuccessNone) {
  EXPECT_EQ(Connect(3), BPS_UNAVAILABLE);
  EXPECT_EQ(failure_.reason, "nobody is there");
  failure_.reason.clear();
  EXPECT_EQ(Connect(4), BPS_OK);
  EXPECT_EQ(failure_.reason, "");

  bps_region* region = nullptr;
  EXPECT_EQ(kPlain.reg(transport_, nullptr, 0, &region, &failure_), BPS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(failure_.reason, "no more regions");
  int memory = 0;
  EXPECT_EQ(kPlain.reg(transport_, &memory, sizeof memory, &region, &failure_), BPS_OK);
  EXPECT_EQ(static_cast<void*>(region), &memory);
}

TEST_F(FaceTest, OfAnOlderCallerWhatItDoesNotHaveIsNotRead) {
  bps_transport_open_args args{};
  args.struct_size = offsetof(bps_transport_open_args, job_key);
  args.config = &library_;
  args.log = &library_;
  args.job_key = 7;  // behind what it says it has
  uint64_t seen = 1;
  const auto open = [&](const Host& host, const bps_transport_open_args& known, std::string*) {
    seen = known.job_key;
    return std::make_unique<Plain>(host);
  };
  bps_transport* opened = nullptr;
  ASSERT_EQ(Face<Plain>::Open(library_.table(), &args, &opened, &failure_, open), BPS_OK);
  EXPECT_EQ(seen, 0u);
  kPlain.close(opened);

  const auto none = [](const Host&, const bps_transport_open_args&, std::string* reason) {
    *reason = "no device";
    return std::unique_ptr<Plain>();
  };
  EXPECT_EQ(Face<Plain>::Open(library_.table(), &args, &opened, &failure_, none), BPS_UNAVAILABLE);
  EXPECT_EQ(failure_.reason, "no device");
}

}  // namespace
}  // namespace byteps::transports
