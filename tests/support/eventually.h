// eventually.h - waits of a test, which end at a deadline.
//
//     ASSERT_TRUE(Eventually([&] { return collapser.idle(); }));
//     ASSERT_TRUE(Eventually(begun.get_future()));
//
// Threads: any.
#ifndef BYTEPS_TESTS_SUPPORT_EVENTUALLY_H_
#define BYTEPS_TESTS_SUPPORT_EVENTUALLY_H_

#include <chrono>
#include <future>
#include <thread>
#include <type_traits>

namespace byteps {

// Long enough for a loaded machine; below the minute that a small test has.
inline constexpr std::chrono::seconds kPatience{50};

// Whether the condition is true by then.
template <typename Condition>
requires std::is_invocable_r_v<bool, Condition&>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Whether the future is ready by then.
template <typename T>
bool Eventually(const std::future<T>& future) {
  return future.wait_for(kPatience) == std::future_status::ready;
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_SUPPORT_EVENTUALLY_H_
