// That this links says that every header compiles alone, twice in a file, as C11 and as C++17; here is what else a
// program may count on.

#include <cstring>
#include <type_traits>

#include "abi/byteps.h"
#include "abi/device.h"
#include "abi/scheduler.h"
#include "abi/transport.h"
#include "gtest/gtest.h"

extern "C" {
extern int bps_alone_byteps_c, bps_alone_device_c, bps_alone_plugin_c, bps_alone_scheduler_c, bps_alone_transport_c;
}
extern int bps_alone_byteps_cc, bps_alone_device_cc, bps_alone_plugin_cc, bps_alone_scheduler_cc,
    bps_alone_transport_cc;

namespace {

TEST(HeadersTest, CompileAloneInBothLanguages) {
  EXPECT_EQ(
      bps_alone_byteps_c + bps_alone_device_c + bps_alone_plugin_c + bps_alone_scheduler_c + bps_alone_transport_c, 5);
  EXPECT_EQ(
      bps_alone_byteps_cc + bps_alone_device_cc + bps_alone_plugin_cc + bps_alone_scheduler_cc + bps_alone_transport_cc,
      5);
}

// The INIT macros set struct_size and leave everything else zero.
template <typename T>
void ExpectInitialised(const T& value) {
  EXPECT_EQ(value.struct_size, sizeof(T));
  T zero = {};
  zero.struct_size = sizeof(T);
  EXPECT_EQ(std::is_trivially_copyable_v<T>, true);
  EXPECT_EQ(std::memcmp(&value, &zero, sizeof(T)), 0);
}

TEST(HeadersTest, InitMacros) {
  // Static, so that padding is zero too and the comparison of bytes means something.
  static const bps_open_args open = BPS_OPEN_ARGS_INIT;
  static const bps_info info = BPS_INFO_INIT;
  static const bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  static const bps_push_pull_args push_pull = BPS_PUSH_PULL_ARGS_INIT;
  static const bps_broadcast_args broadcast = BPS_BROADCAST_ARGS_INIT;
  static const bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  ExpectInitialised(open);
  ExpectInitialised(info);
  ExpectInitialised(declare);
  ExpectInitialised(push_pull);
  ExpectInitialised(broadcast);
  ExpectInitialised(barrier);
}

// Handles are distinct types, never void*: mixing them up does not compile.
static_assert(!std::is_convertible_v<bps_session*, bps_tensor*>);
static_assert(!std::is_convertible_v<bps_request*, bps_status*>);
static_assert(!std::is_convertible_v<bps_transport*, bps_scheduler*>);
static_assert(!std::is_convertible_v<bps_device*, bps_device_event*>);

// No exception crosses: every function says so.
static_assert(noexcept(bps_open_versioned(0, 0, nullptr, nullptr)));
static_assert(noexcept(bps_push_pull(nullptr, nullptr, nullptr)));
static_assert(noexcept(bps_close(nullptr)));

}  // namespace
