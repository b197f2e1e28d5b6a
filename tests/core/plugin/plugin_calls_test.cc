#include "core/plugin/plugin_calls.h"

#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "tests/support/eventually.h"

namespace byteps {
namespace {

bool CanHold() { return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0; }

TEST(PluginCallsTest, ACallThatHasEndedCannotBeHeld) {
  PluginCalls calls;
  uint64_t number = 0;
  {
    const PluginCalls::Scope scope(&calls, "scheduler \"x\"", "next");
    number = calls.Look().number;
    EXPECT_NE(number, 0u);
  }
  EXPECT_FALSE(calls.Hold(number));
  EXPECT_FALSE(calls.Hold(calls.Look().number));
  const PluginCalls::Scope scope(&calls, "scheduler \"x\"", "next");  // does not stay
}

// What the held thread works on is not guarded in any other way: the thread sanitizer would see it go on.
TEST(PluginCallsTest, AThreadThatIsHeldDoesNotGoOn) {
  if (!CanHold()) GTEST_SKIP() << "this kernel has no membarrier";
  struct Shared {
    PluginCalls calls;
    uint64_t steps = 0;
  };
  // The thread never ends.
  static Shared* const shared = new Shared;
  std::thread([] {
    while (true) {
      { const PluginCalls::Scope scope(&shared->calls, "scheduler \"x\"", "next"); }
      ++shared->steps;
    }
  }).detach();
  ASSERT_TRUE(Eventually([] { return shared->calls.Hold(shared->calls.Look().number); }));
  const uint64_t steps = shared->steps;
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::yield();
    ASSERT_EQ(shared->steps, steps);
  }
}

}  // namespace
}  // namespace byteps
