#include "frameworks/jax/native/completion_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace byteps::jax {
namespace {

constexpr std::chrono::seconds kDeadline{30};

// Never destroyed, as the one of a process.
CompletionThreads& Threads(size_t limit) { return *new CompletionThreads(limit); }

TEST(CompletionThreadsTest, RunsAllInOrderOnAnotherThread) {
  CompletionThreads& threads = Threads(1);
  std::vector<int> order;
  std::set<std::thread::id> ids;
  std::promise<void> last;
  for (int i = 0; i < 1000; ++i) {
    threads.Run([&, i] {
      order.push_back(i);
      ids.insert(std::this_thread::get_id());
      if (i == 999) last.set_value();
    });
  }
  ASSERT_EQ(last.get_future().wait_for(kDeadline), std::future_status::ready);
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  EXPECT_EQ(ids.count(std::this_thread::get_id()), 0u);
  EXPECT_EQ(ids.size(), 1u) << "tasks that block nobody need no further thread";
}

TEST(CompletionThreadsTest, OneThreadServesTasksThatComeOneAfterTheOther) {
  CompletionThreads& threads = Threads(8);
  for (int i = 0; i < 100; ++i) {
    std::promise<void> done;
    threads.Run([&] { done.set_value(); });
    ASSERT_EQ(done.get_future().wait_for(kDeadline), std::future_status::ready);
  }
  EXPECT_LE(threads.threads(), 8u);
}

TEST(CompletionThreadsTest, SettlesWhenNoTaskRunsOrWaits) {
  CompletionThreads& threads = Threads(2);
  EXPECT_TRUE(threads.Settle(std::chrono::milliseconds(0))) << "there was no task yet";
  std::promise<void> begun, go;
  threads.Run([&begun, may_go = go.get_future().share()] {
    begun.set_value();
    may_go.wait();
  });
  ASSERT_EQ(begun.get_future().wait_for(kDeadline), std::future_status::ready);
  EXPECT_FALSE(threads.Settle(std::chrono::milliseconds(1)));
  go.set_value();
  EXPECT_TRUE(threads.Settle(kDeadline));
}

// As a collective of many devices, whose parts begin by one promise each.
TEST(CompletionThreadsTest, TasksThatWaitForEachOtherAllBegin) {
  constexpr int kParts = 20;
  CompletionThreads& threads = Threads(2);
  struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    int here = 0;
  };
  auto meeting = std::make_shared<Meeting>();
  std::vector<std::future<bool>> met;
  for (int i = 0; i < kParts; ++i) {
    auto done = std::make_shared<std::promise<bool>>();
    met.push_back(done->get_future());
    threads.Run([meeting, done] {
      std::unique_lock lock(meeting->mutex);
      ++meeting->here;
      meeting->changed.notify_all();
      done->set_value(meeting->changed.wait_for(lock, kDeadline, [&] { return meeting->here == kParts; }));
    });
  }
  for (std::future<bool>& one : met) EXPECT_TRUE(one.get());

  // Threads beyond the limit end.
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (threads.threads() > 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_LE(threads.threads(), 2u);
}

}  // namespace
}  // namespace byteps::jax
