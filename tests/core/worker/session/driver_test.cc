#include "core/worker/session/driver.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/base/submission_queue.h"
#include "tests/support/eventually.h"

namespace byteps {
namespace {

// Ends requests that come through a queue, or when a pipe becomes readable.
class Echo : public Machine {
 public:
  Echo() { EXPECT_EQ(::pipe(pipe_), 0); }
  ~Echo() override {
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }

  bool Step(Time now) override {
    EXPECT_FALSE(inside_.exchange(true)) << "two threads step one machine";
    ++steps;
    if (throws.load() > 0) {
      throws.fetch_sub(1);
      throw std::bad_alloc();
    }
    bool worked = false;
    std::vector<std::shared_ptr<Request>> taken;
    queue.TakeAll(&taken);
    for (std::shared_ptr<Request>& request : taken) {
      worked = true;
      if (by_pipe.load()) {
        waiting_.push_back(std::move(request));
        EXPECT_EQ(::write(pipe_[1], "x", 1), 1);
      } else if (by_timer != 0) {
        timed_.push_back({now + by_timer, std::move(request)});
      } else {
        ended_.push_back({std::move(request), absl::OkStatus()});
      }
    }
    pollfd entry = {pipe_[0], POLLIN, 0};
    if (!waiting_.empty() && ::poll(&entry, 1, 0) == 1) {
      char byte;
      EXPECT_EQ(::read(pipe_[0], &byte, 1), 1);
      ended_.push_back({std::move(waiting_.front()), absl::OkStatus()});
      waiting_.erase(waiting_.begin());
      worked = true;
    }
    if (hold.load()) {
      inside_.store(false);
      return worked;
    }
    while (!timed_.empty() && timed_.front().first <= now) {
      ended_.push_back({std::move(timed_.front().second), absl::OkStatus()});
      timed_.erase(timed_.begin());
      worked = true;
    }
    inside_.store(false);
    return worked;
  }
  void TakeCompletions(std::vector<Completion>* completions) override {
    for (Completion& each : std::exchange(ended_, {})) completions->push_back(std::move(each));
  }
  bool HasCompletions() const override { return !ended_.empty(); }
  bool Busy() const override { return !waiting_.empty() || !timed_.empty() || !queue.empty(); }
  bool QueueEmpty() const override { return queue.empty(); }
  Time NextTimer() const override { return timed_.empty() ? kNever : timed_.front().first; }
  bool Arm() override { return true; }
  void Descriptors(std::vector<pollfd>* descriptors) override { descriptors->push_back({pipe_[0], POLLIN, 0}); }
  void OnException(const char*) noexcept override {
    inside_.store(false);
    ++exceptions;
  }

  SubmissionQueue<std::shared_ptr<Request>> queue;
  std::atomic<bool> by_pipe{false};
  Time by_timer = 0;
  std::atomic<bool> hold{false};  // timers do not end anything yet
  std::atomic<uint64_t> steps{0};
  std::atomic<int> throws{0};  // so many of the next steps
  std::atomic<int> exceptions{0};

 private:
  int pipe_[2];
  std::atomic<bool> inside_{false};
  std::vector<std::shared_ptr<Request>> waiting_;
  std::vector<std::pair<Time, std::shared_ptr<Request>>> timed_;
  std::vector<Completion> ended_;
};

constexpr Time kLong = 60 * kSecond;

std::shared_ptr<Request> Ask(Echo* echo, Driver* driver) {
  auto request = std::make_shared<Request>(nullptr, nullptr);
  echo->queue.Push(request);
  driver->Wake();
  return request;
}

TEST(DriverTest, ManyThreadsHandOverNothingIsLost) {
  for (const bool by_pipe : {false, true}) {
    for (const Time spin : {Time{0}, Time{20'000}}) {
      Echo echo;
      echo.by_pipe = by_pipe;
      Driver driver(&echo, spin);
      driver.Start("driver-test");
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          std::minstd_rand random(static_cast<unsigned>(t) + 1);
          for (int i = 0; i < 2000; ++i) {
            // Pauses of any length, so that sleepers change over at every point.
            for (Time until = Now() + static_cast<Time>(random() % 50'000); random() % 4 == 0 && Now() < until;) {
            }
            auto request = Ask(&echo, &driver);
            // Half of them drive, half only wait.
            ASSERT_TRUE(t % 2 == 0 ? driver.DriveUntil(*request, Now() + kLong) : request->WaitUntil(Now() + kLong));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      driver.Stop();
    }
  }
}

TEST(DriverTest, ACallerDrivesAlone) {
  Echo echo;
  Driver driver(&echo, 0);
  driver.Start("driver-test");
  for (int i = 0; i < 200; ++i) {
    auto request = std::make_shared<Request>(nullptr, nullptr);
    echo.queue.Push(request);
    ASSERT_TRUE(driver.DriveUntil(*request, Now() + kLong));
  }
  driver.Stop();
}

// In a caller's drive, on the library's own thread, and in what others run inside the machine.
TEST(DriverTest, AnExceptionIsToldAndTheLockIsFree) {
  Echo echo;
  Driver driver(&echo, 0);
  driver.Start("driver-test");
  echo.throws = 3;
  auto driven = Ask(&echo, &driver);
  ASSERT_TRUE(driver.DriveUntil(*driven, Now() + kLong));
  EXPECT_EQ(echo.exceptions, 3);
  driver.Run([] { throw std::bad_alloc(); });
  EXPECT_EQ(echo.exceptions, 4);
  bool ran = false;
  const Time until = Now() + kLong;
  while (!driver.TryRun([&] { throw(ran = true, std::bad_alloc()); }, false) && Now() < until) ::sched_yield();
  EXPECT_TRUE(ran);
  EXPECT_EQ(echo.exceptions, 5);
  echo.throws = 1;
  auto waited = Ask(&echo, &driver);
  EXPECT_TRUE(waited->WaitUntil(Now() + kLong));
  EXPECT_EQ(echo.exceptions, 6);
  driver.Stop();
}

// Again and again: one time in ten the thread is on its way to sleep, or has not yet woken for the signal that the
// caller's own drive clears.
TEST(DriverTest, TheThreadTakesOverWhatACallerLeft) {
  for (int round = 0; round < 60; ++round) {
    Echo echo;
    echo.by_timer = 20 * kMillisecond;
    echo.hold = true;
    Driver driver(&echo, 0);
    driver.Start("driver-test");
    auto late = Ask(&echo, &driver);
    EXPECT_FALSE(driver.DriveUntil(*late, Now() + kMillisecond)) << "its time has not come";
    echo.hold = false;
    ASSERT_TRUE(late->WaitUntil(Now() + kLong)) << "nobody drives any more, in round " << round;
    driver.Stop();
  }
}

// Callers that leave at any moment, also right behind what others have handed over meanwhile.
TEST(DriverTest, NothingIsLostWhereCallersLeave) {
  for (const Time timer : {Time{0}, Time{30'000}}) {
    Echo echo;
    echo.by_timer = timer;
    Driver driver(&echo, 0);
    driver.Start("driver-test");
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::minstd_rand random(static_cast<unsigned>(t) + 1);
        for (int i = 0; i < 2000; ++i) {
          auto request = Ask(&echo, &driver);
          driver.DriveUntil(*request, Now() + static_cast<Time>(random() % 40'000));
          ASSERT_TRUE(request->WaitUntil(Now() + kLong)) << "nobody drives any more, after " << i;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    driver.Stop();
  }
}

TEST(DriverTest, RunInterruptsADrivingCaller) {
  Echo echo;
  echo.by_timer = 100 * kMillisecond;
  Driver driver(&echo, 0);
  driver.Start("driver-test");
  auto request = Ask(&echo, &driver);
  std::thread caller([&] { EXPECT_TRUE(driver.DriveUntil(*request, Now() + kLong)); });
  for (int i = 0; i < 100; ++i) {
    bool ran = false;
    driver.Run([&] { ran = true; });
    EXPECT_TRUE(ran);
  }
  caller.join();
  driver.Stop();
}

void TestCallback(void* user, bps_status*) { *static_cast<bool*>(user) = Driver::InCallback(); }

TEST(DriverTest, CallbacksKnowWhereTheyAre) {
  Echo echo;
  Driver driver(&echo, 0);
  driver.Start("driver-test");
  bool inside = false;
  auto request = std::make_shared<Request>(&TestCallback, &inside);
  echo.queue.Push(request);
  driver.Wake();
  ASSERT_TRUE(request->WaitUntil(Now() + kLong));
  EXPECT_TRUE(inside);
  EXPECT_FALSE(Driver::InCallback());
  driver.Stop();
}

// A callback that does not return before the thread that drives beside it has gone to sleep.
struct Dawdler {
  Echo* echo;
  std::atomic<bool> entered{false}, driven{false};

  static void Done(void* user, bps_status*) {
    auto* self = static_cast<Dawdler*>(user);
    self->entered = true;
    Request never(nullptr, nullptr);
    uint64_t before = ~uint64_t{0};
    for (const Time end = Now() + kLong; (!self->driven || self->echo->steps != before) && Now() < end;) {
      before = self->echo->steps;
      never.WaitUntil(Now() + 50 * kMillisecond);
    }
  }
};

TEST(DriverTest, ARequestThatEndsBesideItsDriverWakesIt) {
  Echo echo;
  Driver driver(&echo, 0);
  driver.Start("driver-test");
  Dawdler dawdler{&echo};
  auto request = std::make_shared<Request>(&Dawdler::Done, &dawdler);
  echo.queue.Push(request);
  driver.Wake();
  ASSERT_TRUE(Eventually([&] { return dawdler.entered.load(); }));
  // The I/O thread has taken the completion, and the machine has nothing more to do.
  const Time deadline = Now() + kLong;
  dawdler.driven = true;
  EXPECT_TRUE(driver.DriveUntil(*request, deadline));
  EXPECT_LT(Now(), deadline) << "nobody told it";
  driver.Stop();
}

TEST(DriverTest, IdleUsesNoProcessor) {
  Echo echo;
  Driver driver(&echo, 50'000);
  driver.Start("driver-test");
  auto request = Ask(&echo, &driver);
  ASSERT_TRUE(driver.DriveUntil(*request, Now() + kLong));
  const auto wait = [&](Time time) {
    Request never(nullptr, nullptr);
    never.WaitUntil(Now() + time);
  };
  // On a loaded machine the thread's brief moment of yielding may come late: rest must come, whenever.
  uint64_t steps = 4;
  for (const Time end = Now() + kLong; steps > 3 && Now() < end;) {
    const uint64_t before = echo.steps;
    wait(300 * kMillisecond);
    steps = echo.steps - before;
  }
  EXPECT_LE(steps, 3u);
  driver.Stop();
}

TEST(DriverTest, ALongDriveLeavesTheThreadAsleep) {
  Echo echo;
  Driver driver(&echo, 50'000);
  driver.Start("driver-test");
  Request never(nullptr, nullptr);
  struct rusage before, after;
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_FALSE(driver.DriveUntil(never, Now() + 300 * kMillisecond));
  ::getrusage(RUSAGE_SELF, &after);
  const auto micros = [](const rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  };
  EXPECT_LT(micros(after) - micros(before), 100'000);
  auto request = Ask(&echo, &driver);
  EXPECT_TRUE(request->WaitUntil(Now() + kLong)) << "the thread was called back";
  driver.Stop();
}

}  // namespace
}  // namespace byteps
