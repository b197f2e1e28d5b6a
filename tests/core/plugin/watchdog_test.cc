#include "core/plugin/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace byteps {
namespace {

// A thread of a busy machine may stand still in the middle of a short call for tenths of a second.
constexpr Time kLimit = kSecond;

TEST(WatchdogTest, ACallThatLastsIsTold) {
  PluginCalls calls;
  Logger log;
  std::promise<absl::Status> told;
  Watchdog watchdog("this worker", kLimit, &log);
  watchdog.Add(&calls, [&](const absl::Status& why) { told.set_value(why); });
  watchdog.Start();
  const PluginCalls::Scope scope(&calls, "scheduler \"x\"", "next");
  std::future<absl::Status> why = told.get_future();
  ASSERT_EQ(why.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  const std::string text = why.get().ToString();
  EXPECT_NE(text.find("scheduler \"x\" has not returned from next"), std::string::npos) << text;
  watchdog.Stop();  // (a second call of on_stuck would throw)
}

// Many short calls are no long one.
TEST(WatchdogTest, CallsThatReturnAreNot) {
  PluginCalls calls;
  Logger log;
  std::atomic<int> told{0};
  Watchdog watchdog("this worker", kLimit, &log);
  watchdog.Add(&calls, [&](const absl::Status&) { ++told; });
  watchdog.Start();
  for (const Time until = Now() + 3 * kLimit; Now() < until;) {
    const PluginCalls::Scope scope(&calls, "scheduler \"x\"", "next");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that each look meets a call, and not a pause
  }
  watchdog.Stop();
  EXPECT_EQ(told, 0);
  EXPECT_EQ(calls.Look().number, 0u);
}

}  // namespace
}  // namespace byteps
