// Endpoints that come and go, with few descriptors, and what they leave behind.

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/child.h"
#include "tests/transport_plugins/shm/end.h"

namespace byteps::testing {
namespace {

size_t Descriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Of an end that hears of others, or waits for ever.
const std::map<std::string, std::string> kPatient = {{"BYTEPS_PEER_TIMEOUT", "0"}};

// Of few descriptors, each may be the first that there is not: of the endpoint, of the connection, of what comes over
// it. A peer that lacks it knows that it was this, and that no other peer has failed; the other one hears of the end.
TEST(ShmLifetime, APeerThatHasNoDescriptorsLeftKnowsIt) {
  constexpr int kNotOpened = 5, kNotConnected = 4, kStarved = 20, kLost = 21, kSilent = 22;
  std::map<int, int> ends;
  for (rlim_t spare = 0; spare < 16; ++spare) {
    SCOPED_TRACE(spare);
    Child child(
        [spare] {
          // Those below the first that is free, and so many more.
          const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
          const rlimit limit{static_cast<rlim_t>(next) + spare, static_cast<rlim_t>(next) + spare};
          close(next);
          if (next < 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(6);
        },
        [](End* end, const std::string&) {
          end->Send("works");
          if (!end->Until([&] { return end->heard[BPS_EVENT_PEER_DOWN] != 0 || !end->messages.empty(); })) {
            _exit(kSilent);
          }
          if (end->heard[BPS_EVENT_PEER_DOWN] == 0) _exit(0);
          std::fprintf(stderr, "%s", end->log().c_str());
          _exit(end->down == BPS_RESOURCE_EXHAUSTED && end->log().find("ulimit -n") != std::string::npos ? kStarved
                                                                                                         : kLost);
        });
    End end(kPatient);  // what it does not hear, it does not know
    std::vector<std::byte> memory(64);
    bool joined = false;
    try {
      child.Join(&end, end.Reg(memory.data(), memory.size()));
      if (HasFatalFailure()) return;
      joined = true;
    } catch (const std::runtime_error&) {  // it has ended: it could not even open an endpoint
    }
    int status = 0;
    if (joined) {
      end.Send("hello");
      ASSERT_TRUE(end.Until([&] { return waitpid(child.pid(), &status, WNOHANG) == child.pid(); })) << end.log();
    } else {
      ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
    }
    ASSERT_TRUE(WIFEXITED(status));
    const int code = WEXITSTATUS(status);
    EXPECT_TRUE(code == kNotOpened || code == kNotConnected || code == kStarved || code == 0) << code;
    if (code == kStarved || code == 0) {
      EXPECT_TRUE(end.Until([&] { return end.heard[BPS_EVENT_PEER_DOWN] == 1; })) << end.log();
    }
    ++ends[code];
  }
  EXPECT_GT(ends[kNotOpened], 0);
  EXPECT_GT(ends[kStarved], 0);
  EXPECT_GT(ends[0], 0);
}

// A peer that cannot be connected to for lack of descriptors says so to the other side: whichever of the two is to call
// (it is drawn by lot), and whether the other one knows it already or not yet.
TEST(ShmLifetime, APeerThatIsNotConnectedForLackOfDescriptorsIsTold) {
  int told = 0;
  for (int lot = 0; lot < 64; ++lot) {
    SCOPED_TRACE(lot);
    const bool known = lot % 2 == 1;
    End starved, other(kPatient);
    if (known) {
      ASSERT_EQ(other.Connect(starved.address()), BPS_OK);
      other.Poll();
    }
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ASSERT_GE(next, 0);
    close(next);
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit one{static_cast<rlim_t>(next) + 1, before.rlim_max};  // for the channel
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one), 0);
    const int32_t connected = starved.Connect(other.address());
    starved.Poll();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_EQ(connected, BPS_OK) << starved.failure();
    if (starved.down == BPS_OK) continue;  // it waits to be called, and no peer knows of it yet
    ++told;
    EXPECT_EQ(starved.down, BPS_RESOURCE_EXHAUSTED);
    other.Poll();
    if (!known) {
      ASSERT_EQ(other.Connect(starved.address()), BPS_OK);
    }
    ASSERT_TRUE(other.Until([&] { return other.heard[BPS_EVENT_PEER_DOWN] == 1; })) << other.log();
    EXPECT_EQ(other.down, BPS_UNAVAILABLE);
    EXPECT_NE(other.log().find("its process has no descriptors left (ulimit -n)"), std::string::npos) << other.log();
    EXPECT_EQ(other.why, "cannot be connected to: its process has no descriptors left (ulimit -n)");
  }
  EXPECT_GT(told, 32);
}

// A peer that calls before it is known, where none can be let in: it is heard when it is known, and no processor is
// used until then.
TEST(ShmLifetime, APeerThatCannotBeLetInYetDoesNotKeepItsHostAwake) {
  // Who calls whom is drawn by lot: of these, some caller calls.
  const auto called = std::make_unique<End>();
  std::vector<std::unique_ptr<End>> callers;
  for (int i = 0; i < 20; ++i) {
    callers.push_back(std::make_unique<End>());
    ASSERT_EQ(callers.back()->Connect(called->address(), kOther, static_cast<bps_peer>(100 + i)), BPS_OK);
  }
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto sleeps = [&] {
    while (called->Poll() != 0) continue;
    if (called->table().arm(called->transport()) != BPS_OK) return false;
    pollfd wait{called->table().wait_fd(called->transport()), POLLIN, 0};
    return poll(&wait, 1, 20) == 0;
  };
  const bool slept = called->Until(sleeps);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(slept);
  for (size_t i = 0; i < callers.size(); ++i) {
    ASSERT_EQ(called->Connect(callers[i]->address(), static_cast<bps_peer>(100 + i)), BPS_OK);
    bool sent = false;
    ASSERT_TRUE(called->Until([&] {
      callers[i]->Poll();
      sent = sent || callers[i]->Send("let me in") == BPS_OK;
      return called->messages.size() > i;
    })) << i;
  }
}

size_t Mappings() {
  size_t count = 0;
  FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) count += std::strstr(line, "memfd:byteps") != nullptr;
  std::fclose(maps);
  return count;
}

TEST(ShmLifetime, ManyLivesLeaveNothingBehind) {
  const std::vector<std::byte> source = Pattern(100'000);
  size_t descriptors = 0, mappings = 0;
  for (int life = 0; life < 100; ++life) {
    SCOPED_TRACE(life);
    {
      End a, b;
      ASSERT_EQ(a.Connect(b.address()), BPS_OK);
      ASSERT_EQ(b.Connect(a.address()), BPS_OK);
      bps_region* region = nullptr;
      void* base = nullptr;
      ASSERT_EQ(b.table().allocate(b.transport(), source.size(), &region, &base, nullptr), BPS_OK);
      ASSERT_EQ(a.Write(source.data(), source.size(), b.Key(region), 1), BPS_OK);
      ASSERT_TRUE(a.Until([&] {
        b.Poll();
        return b.heard[BPS_EVENT_IMMEDIATE] == 1;
      }));
      EXPECT_EQ(std::memcmp(base, source.data(), source.size()), 0);
      if (life % 2 == 0) b.table().unreg(b.transport(), region);
      if (life % 3 == 0) a.table().disconnect(a.transport(), kOther);
      if (life % 2 == 1) b.table().unreg(b.transport(), region);
    }
    if (life == 3) {
      descriptors = Descriptors();
      mappings = Mappings();
    }
  }
  EXPECT_EQ(Descriptors(), descriptors);
  EXPECT_EQ(Mappings(), mappings);
}

// Is there a reason for this end to wake up, if it slept?
bool Rung(End& end) {
  pollfd fd = {end.table().wait_fd(end.transport()), POLLIN, 0};
  return ::poll(&fd, 1, 0) == 1;
}

// A system call for each message is what a peer that is awake does not need.
TEST(ShmLifetime, TheBellRingsOnceForWhoSleepsAndNotForWhoIsAwake) {
  End a, b;
  ASSERT_EQ(a.Connect(b.address()), BPS_OK);
  ASSERT_EQ(b.Connect(a.address()), BPS_OK);
  ASSERT_EQ(a.Send("first"), BPS_OK);
  // That many have come, and there is nothing else to do.
  const auto come = [&](size_t count) {
    return a.Poll() + b.Poll() == 0 && b.messages.size() == count && !Rung(a) && !Rung(b);
  };
  ASSERT_TRUE(b.Until([&] { return come(1); }));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(a.Send("awake"), BPS_OK);
    EXPECT_FALSE(Rung(b)) << i;
  }
  ASSERT_TRUE(b.Until([&] { return come(21); }));

  for (int i = 0; i < 3; ++i) {
    const size_t had = b.messages.size();
    ASSERT_TRUE(b.Until([&] { return b.table().arm(b.transport()) == BPS_OK && !Rung(b); }));
    ASSERT_EQ(a.Send("asleep"), BPS_OK);
    EXPECT_TRUE(Rung(b));
    ASSERT_TRUE(b.Until([&] { return come(had + 1); }));
    ASSERT_EQ(a.Send("awake again"), BPS_OK);
    EXPECT_FALSE(Rung(b));
    ASSERT_TRUE(b.Until([&] { return come(had + 2); }));
  }
}

// Two that had nothing to say to each other for longer than the patience lasts: it begins with what is posted then.
TEST(ShmLifetime, PatienceWithAPeerBeginsWhenItIsGivenSomething) {
  constexpr auto kPause = std::chrono::milliseconds(500);
  const std::map<std::string, std::string> impatient = {{"BYTEPS_PEER_TIMEOUT", "400ms"}};
  End a(impatient), b(kPatient);
  ASSERT_EQ(a.Connect(b.address()), BPS_OK);
  ASSERT_EQ(b.Connect(a.address()), BPS_OK);
  std::vector<std::byte> memory(64);
  const std::string key = b.Key(b.Reg(memory.data(), memory.size()));
  ASSERT_EQ(a.Send("first"), BPS_OK);
  ASSERT_TRUE(b.Until([&] { return a.Poll() + b.Poll() == 0 && !b.messages.empty(); }));
  for (const bool writes : {false, true}) {
    SCOPED_TRACE(writes);
    // It has seen that nothing is owed to it; then neither looks, and time passes.
    const auto seen = Clock::now() + std::chrono::milliseconds(250);
    ASSERT_TRUE(a.Until([&] { return Clock::now() > seen; }));
    std::this_thread::sleep_for(kPause);  // the silence itself, not a wait for anything
    ASSERT_EQ(writes ? a.Write(memory.data(), 1, key, 7) : a.Send("at last"), BPS_OK);
    a.Poll();
    EXPECT_EQ(a.down, BPS_OK) << a.log();
    const uint32_t event = writes ? BPS_EVENT_IMMEDIATE : BPS_EVENT_MESSAGE;
    ASSERT_TRUE(b.Until([&] { return b.heard[event] == (writes ? 1 : 2); }));
  }
  // And who takes nothing from then on is lost all the same.
  ASSERT_EQ(a.Send("once more"), BPS_OK);
  EXPECT_TRUE(a.Until([&] { return a.down == BPS_UNAVAILABLE; }));
  EXPECT_EQ(a.why, "took nothing for 400 ms (BYTEPS_PEER_TIMEOUT)");
}

TEST(ShmLifetime, APeerThatIsOutOfReachIsToldWhy) {
  End end, other;
  std::string elsewhere = other.address();
  elsewhere[8] = elsewhere[8] == 'x' ? 'y' : 'x';  // the first letter of the boot id
  EXPECT_EQ(end.Connect(elsewhere), BPS_UNAVAILABLE);
  EXPECT_NE(end.failure().find("on another host"), std::string::npos) << end.failure();
  elsewhere = other.address();
  elsewhere[48] = static_cast<char>(elsewhere[48] ^ 1);  // the network namespace
  EXPECT_EQ(end.Connect(elsewhere), BPS_UNAVAILABLE);
  EXPECT_NE(end.failure().find("another network namespace"), std::string::npos) << end.failure();
  elsewhere = other.address();
  elsewhere[56] = static_cast<char>(elsewhere[56] ^ 1);  // the IPC namespace
  EXPECT_EQ(end.Connect(elsewhere), BPS_UNAVAILABLE);
  EXPECT_NE(end.failure().find("another IPC namespace"), std::string::npos) << end.failure();
  EXPECT_EQ(end.Connect(end.address()), BPS_UNAVAILABLE);
  EXPECT_EQ(end.Connect("nonsense"), BPS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace byteps::testing
