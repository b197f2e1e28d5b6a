#include "core/worker/memory/page_collapser.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/eventually.h"

namespace byteps {
namespace {

constexpr size_t kPage = PageCollapser::kHugePage;
std::byte* At(size_t page) { return reinterpret_cast<std::byte*>((page + 1) * kPage); }

// A kernel that is as slow as the test wants.
TEST(PageCollapserTest, AskingDoesNotWaitAndEachCallIsOnePage) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::mutex mutex;
  std::set<void*> seen;
  std::atomic<bool> whole{true};
  PageCollapser collapser([&](void* address, size_t bytes) {
    gone.wait();
    whole = whole && bytes == kPage;
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(address);
    return true;
  });
  collapser.Ask(At(0), 5 * kPage);
  collapser.Ask(At(100), 3 * kPage + 17);
  EXPECT_FALSE(collapser.idle());
  go.set_value();
  EXPECT_TRUE(Eventually([&] { return collapser.idle(); }));
  const std::lock_guard<std::mutex> lock(mutex);
  EXPECT_EQ(seen.size(), 8u);
  EXPECT_TRUE(whole);
  EXPECT_TRUE(seen.contains(At(4)));
  EXPECT_TRUE(seen.contains(At(102)));
}

TEST(PageCollapserTest, StopWaitsForOnePageAtMost) {
  std::promise<void> begun;
  std::promise<void> go;
  std::atomic<int> calls{0};
  PageCollapser collapser([&](void*, size_t) {
    if (calls++ == 0) {
      begun.set_value();
      go.get_future().wait();
    }
    return true;
  });
  collapser.Ask(At(0), 1000 * kPage);
  EXPECT_TRUE(Eventually(begun.get_future()));
  std::thread stops([&] { collapser.Stop(); });
  EXPECT_TRUE(Eventually([&] { return collapser.idle(); })) << "Stop has not been there";
  go.set_value();
  stops.join();
  EXPECT_EQ(calls, 1);
  collapser.Ask(At(0), kPage);
  EXPECT_TRUE(collapser.idle()) << "it has stopped";
}

TEST(PageCollapserTest, AKernelThatCannotIsAskedOnce) {
  std::atomic<int> calls{0};
  PageCollapser collapser([&](void*, size_t) {
    ++calls;
    return false;
  });
  collapser.Ask(At(0), 50 * kPage);
  EXPECT_TRUE(Eventually([&] { return collapser.idle(); }));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace byteps
