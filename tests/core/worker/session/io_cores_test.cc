#include "core/worker/session/io_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <string>
#include <thread>

namespace byteps {
namespace {

cpu_set_t Usable() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  EXPECT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  return cores;
}

int Last(const cpu_set_t& cores) {
  int last = -1;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) last = core;
  }
  return last;
}

TEST(IoCores, NothingIsChosenByDefault) {
  const auto cores = IoCores::Read("", 0);
  ASSERT_TRUE(cores.ok());
  EXPECT_FALSE(cores->chosen());
  const cpu_set_t before = Usable();
  const IoCores::Scope scope(*cores);
  const cpu_set_t inside = Usable();
  EXPECT_TRUE(CPU_EQUAL(&before, &inside));
}

TEST(IoCores, AThreadThatIsStartedInsideStaysThere) {
  const cpu_set_t before = Usable();
  const int core = Last(before);
  const auto cores = IoCores::Read(std::to_string(core), 3);
  ASSERT_TRUE(cores.ok()) << cores.status();
  cpu_set_t inherited;
  std::thread thread;
  {
    const IoCores::Scope scope(*cores);
    thread = std::thread([&] { inherited = Usable(); });
  }
  thread.join();
  EXPECT_EQ(CPU_COUNT(&inherited), 1);
  EXPECT_TRUE(CPU_ISSET(core, &inherited));
  const cpu_set_t after = Usable();
  EXPECT_TRUE(CPU_EQUAL(&before, &after)) << "the thread that started it runs where it did before";
}

TEST(IoCores, AListForEachLocalRank) {
  const int core = Last(Usable());
  const std::string text = "99999:" + std::to_string(core);
  EXPECT_FALSE(IoCores::Read(text, 0).ok());
  const auto cores = IoCores::Read(text, 1);
  ASSERT_TRUE(cores.ok()) << cores.status();
  EXPECT_TRUE(CPU_ISSET(core, &cores->cores()));
  const auto none = IoCores::Read(text, 2);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("2 lists, none for local rank 2"), std::string::npos) << none.status();
}

TEST(IoCores, WhatIsNoListIsNamed) {
  for (const char* text : {"a", "1-", "-1", "1,,2", "3-1", "+1", "0x1", "99999999999999999999"}) {
    const auto cores = IoCores::Read(text, 0);
    ASSERT_FALSE(cores.ok()) << text;
    EXPECT_NE(cores.status().message().find("BYTEPS_IO_CPU_CORES=" + std::string(text)), std::string::npos)
        << cores.status();
  }
}

TEST(IoCores, CoresThatThisProcessMayNotUseAreNamed) {
  const cpu_set_t before = Usable();
  const int absent = CPU_SETSIZE - 1;
  if (CPU_ISSET(absent, &before)) GTEST_SKIP() << "this host has core " << absent;
  for (const std::string& text :
       {std::to_string(absent), std::to_string(Last(before)) + "," + std::to_string(absent)}) {
    const auto cores = IoCores::Read(text, 0);
    ASSERT_FALSE(cores.ok()) << text;
    EXPECT_NE(cores.status().message().find(text == std::to_string(absent) ? "cannot run on these cores"
                                                                           : "may not use cores 1023"),
              std::string::npos)
        << cores.status();
    const cpu_set_t after = Usable();
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }
}

}  // namespace
}  // namespace byteps
