// Idle: without a poll nothing is used; and a sleeper is woken.

#include <poll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "abi/byteps.h"
#include "tests/transport/transport_test.h"

namespace byteps::testing {
namespace {

bool Readable(int fd, int timeout_ms) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

// Of a processor, by a transport that is not needed.
constexpr double kAllowed = 0.01;

// What all threads of this process have used, those of the plugin and of sanitizers included.
struct Used {
  double cpu = 0;      // seconds
  int64_t sleeps = 0;  // how often one of them lay down: each time it had been woken

  friend Used operator-(const Used& a, const Used& b) { return {a.cpu - b.cpu, a.sleeps - b.sleeps}; }
};

Used UsedSoFar() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return {static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9, usage.ru_nvcsw};
}

// What a second costs here with a sleeper that looks up ten times.
Used SleepForASecond() {
  int fds[2];
  EXPECT_EQ(::pipe(fds), 0);
  const Used before = UsedSoFar();
  for (int i = 0; i < 10; ++i) Readable(fds[0], 100);
  const Used used = UsedSoFar() - before;
  ::close(fds[0]);
  ::close(fds[1]);
  return used;
}

TEST_P(TransportTest, TheDescriptorWakesAnArmedSleeper) {
  const Pair pair = Join();
  Station& a = *pair.a;
  Station& b = *pair.b;
  if (!b.has(BPS_TRANSPORT_WAIT_FD)) GTEST_SKIP() << "BPS_TRANSPORT_WAIT_FD is not announced";
  const int fd = b.table().wait_fd(b.transport());
  ASSERT_GE(fd, 0);
  Memory& target = b.NewMemory(64);
  Memory& source = a.NewMemory(64);
  const std::string key = b.Key(target.region, pair.to_a);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    // Nothing is on its way: arming succeeds sooner or later.
    ASSERT_TRUE(Until([&] { return b.table().arm(b.transport()) == BPS_OK; }));
    EXPECT_EQ(b.table().wait_fd(b.transport()), fd) << "the same for the life of the transport";
    const size_t messages = b.messages(pair.to_a).size(), immediates = b.immediates().size();
    const bool write = round % 2 == 1;
    int32_t code = BPS_TRANSPORT_AGAIN;
    const int64_t deadline = world().Now() + int64_t{60'000'000'000};
    auto arrived = [&] { return write ? b.immediates().size() > immediates : b.messages(pair.to_a).size() > messages; };
    // b sleeps as its owner would: it polls only when the descriptor says so and arms before it sleeps again.
    while (!arrived() && world().Now() < deadline) {
      if (code == BPS_TRANSPORT_AGAIN) {
        code = write ? a.Write(pair.to_b, source.region, source.at(0), 64, key, 0, 7) : a.Send(pair.to_b, "wake up");
      }
      a.Poll();
      if (Readable(fd, 0)) {
        do b.Poll();
        while (b.table().arm(b.transport()) != BPS_OK && world().Now() < deadline);
      }
      world().Pass();
    }
    ASSERT_TRUE(arrived()) << "the sleeper was not woken";
    ASSERT_TRUE(Until([&] { return a.outstanding() == 0; }));
  }
}

// Between the last poll and arm: the last chance to lose a wake-up.
TEST_P(TransportTest, WhatCameBeforeArmingIsNotSleptThrough) {
  const Pair pair = Join();
  Station& a = *pair.a;
  Station& b = *pair.b;
  if (!b.has(BPS_TRANSPORT_WAIT_FD)) GTEST_SKIP() << "BPS_TRANSPORT_WAIT_FD is not announced";
  const int fd = b.table().wait_fd(b.transport());
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    const size_t before = b.messages(pair.to_a).size();
    ASSERT_TRUE(Until([&] { return b.table().arm(b.transport()) == BPS_OK; }));
    b.Poll();
    ASSERT_EQ(Post([&] { return a.Send(pair.to_b, "just now"); }), BPS_OK);
    const int64_t deadline = world().Now() + int64_t{20'000'000'000};
    while (b.messages(pair.to_a).size() == before && world().Now() < deadline) {
      a.Poll();
      if (b.table().arm(b.transport()) != BPS_OK || Readable(fd, 0)) b.Poll();
      world().Pass();
    }
    ASSERT_GT(b.messages(pair.to_a).size(), before) << "armed, and not woken";
    ASSERT_TRUE(Until([&] { return a.outstanding() == 0; }));
  }
}

// The two ends belong to two threads; one of them sleeps between any two messages.
TEST_P(TransportTest, ASleeperInAnotherThreadIsWokenEachTime) {
  if (!world().RealTime()) GTEST_SKIP() << "time is virtual here";
  const Pair pair = Join();
  Station& a = *pair.a;
  Station& b = *pair.b;
  if (!b.has(BPS_TRANSPORT_WAIT_FD)) GTEST_SKIP() << "BPS_TRANSPORT_WAIT_FD is not announced";
  constexpr size_t kMessages = 300;
  const size_t base = b.messages(pair.to_a).size();
  std::atomic<size_t> seen{0};
  std::atomic<bool> overslept{false};
  std::thread sleeper([&] {
    const int fd = b.table().wait_fd(b.transport());
    while (seen.load() < kMessages && !overslept.load()) {
      const bool worked = b.Poll() != 0;
      seen.store(b.messages(pair.to_a).size() - base);
      if (worked || b.table().arm(b.transport()) != BPS_OK) continue;
      if (!Readable(fd, 20'000)) overslept.store(true);
    }
  });
  size_t sent = 0;
  while (!overslept.load() && seen.load() < kMessages) {
    // Some at once, some after the sleeper has seen all.
    if (sent < kMessages && (sent == seen.load() || sent % 7 == 0) && a.Send(pair.to_b, "wake up") == BPS_OK) ++sent;
    a.Poll();
    world().Pass();
  }
  sleeper.join();
  EXPECT_FALSE(overslept.load()) << "not woken for message " << seen.load();
  EXPECT_TRUE(Until([&] { return a.outstanding() == 0; }));
}

// Who has posted something sleeps, too: until it is told that its memory is its own again.
TEST_P(TransportTest, APeerThatPostsAndSleepsHearsOfTheEnd) {
  if (!world().RealTime()) GTEST_SKIP() << "time is virtual here";
  const Pair pair = Join();
  Station& a = *pair.a;
  Station& b = *pair.b;
  if (!a.has(BPS_TRANSPORT_WAIT_FD)) GTEST_SKIP() << "BPS_TRANSPORT_WAIT_FD is not announced";
  // Small ones are taken at once, of large ones the network takes a part, and the rest only after b has polled.
  constexpr size_t kLarge = size_t{8} << 20, kRounds = 9;
  Memory& source = a.NewMemory(kLarge);
  // Each write has a place of its own: two may land at once.
  Memory& target = b.NewMemory(kRounds / 3 * (kLarge + 64));
  const std::string key = b.Key(target.region, pair.to_a);
  Settle(1'000'000);
  std::atomic<bool> asleep{false}, overslept{false}, over{false};
  std::thread sleeper([&] {
    const int fd = a.table().wait_fd(a.transport());
    for (size_t round = 0; round < kRounds && !overslept.load(); ++round) {
      const size_t before = a.completed();
      int32_t code = BPS_TRANSPORT_AGAIN;
      while (code == BPS_TRANSPORT_AGAIN) {
        if (round % 3 == 0) {
          code = a.Send(pair.to_b, "and good night");
        } else {
          const size_t size = round % 3 == 1 ? 64 : kLarge, before_it = round % 3 == 1 ? kRounds / 3 * kLarge : 0;
          code = a.Write(pair.to_b, source.region, source.at(0), size, key, before_it + round / 3 * size, 3);
        }
        if (code == BPS_TRANSPORT_AGAIN) a.Poll();
      }
      EXPECT_EQ(code, BPS_OK);
      if (code != BPS_OK) break;
      // To bed without a look.
      while (a.completed() == before && !overslept.load()) {
        if (a.table().arm(a.transport()) == BPS_OK) {
          asleep.store(true);
          if (!Readable(fd, 20'000)) overslept.store(true);
        }
        a.Poll();
      }
    }
    over.store(true);
  });
  int64_t next = 0;
  while (!over.load()) {
    // b is slow: it does not move before a has lain down.
    if (asleep.exchange(false) || world().Now() >= next) {
      while (b.Poll() != 0) {
      }
      next = world().Now() + 1'000'000;
    }
    world().Pass();
  }
  sleeper.join();
  EXPECT_FALSE(overslept.load()) << "not woken after " << a.completed() << " operations had ended";
  EXPECT_TRUE(Until([&] { return a.outstanding() == 0; }));
}

// Wake-ups are counted, and are the same everywhere. What they cost is measured: on an emulated processor twenty times
// what it is on a real one, and time that its host took away looks like time used. So the allowance goes by what a bare
// sleeper costs here, and some second must be quiet; of one that spins none is.
TEST_P(TransportTest, AnIdleTransportUsesNoCpu) {
  if (!world().RealTime()) GTEST_SKIP() << "time is virtual here";
  // Before there is an endpoint, and with it threads that might be busy.
  Used bare = SleepForASecond();
  // 1%, unless a bare sleeper needs a good part of that in its quietest second, too: then the processor is emulated.
  for (int second = 1; second < 5 && 5 * bare.cpu > kAllowed; ++second) {
    const Used again = SleepForASecond();
    if (again.cpu < bare.cpu) bare = again;
  }
  const double allowed = std::clamp(5 * bare.cpu, kAllowed, 10 * kAllowed);
  const Pair pair = Join();
  Station& b = *pair.b;
  if (!b.has(BPS_TRANSPORT_WAIT_FD)) GTEST_SKIP() << "BPS_TRANSPORT_WAIT_FD is not announced";
  const int fd = b.table().wait_fd(b.transport());
  Settle(100'000'000);
  Used used{.cpu = 1};
  for (int second = 0; second < 10 && used.cpu >= allowed; ++second) {
    SCOPED_TRACE(second);
    const int64_t end = world().Now() + 1'000'000'000;
    const Used before = UsedSoFar();
    int passes = 0;
    for (; world().Now() < end; ++passes) {
      b.Poll();
      if (b.table().arm(b.transport()) == BPS_OK) Readable(fd, 100);
    }
    used = UsedSoFar() - before;
    ASSERT_LT(passes, 30) << "the owner is woken, or may not sleep";
    ASSERT_LT(used.sleeps, bare.sleeps + 20) << "a thread of the transport wakes up again and again";
  }
  EXPECT_LT(used.cpu, allowed) << "seconds of processor in a second; a bare sleeper used " << bare.cpu;
}

}  // namespace
}  // namespace byteps::testing
