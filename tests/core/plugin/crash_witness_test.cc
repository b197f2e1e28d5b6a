// A crash is told with what it happened in, and then goes where it would have gone.
#include "core/plugin/crash_witness.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "core/base/log.h"
#include "core/config/config.h"
#include "core/plugin/plugin_registry.h"

namespace byteps {
namespace {

class CrashWitnessTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

// Under sanitizers their own handler comes next; else the signal ends the process.
bool Failed(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

using Handler = void (*)(int);

Handler HandlerOf(int number) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  return action.sa_handler;
}

void OwnHandler(int) {
  constexpr char kText[] = "the handler of the application\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(7);
}

TEST_F(CrashWitnessTest, NamesWhatItHappenedIn) {
  const auto crash = [](int number) {
    const CrashWitness witness("loading x");
    ::raise(number);
  };
  EXPECT_EXIT(crash(SIGSEGV), Failed, "byteps: SIGSEGV while loading x: ");
  EXPECT_EXIT(crash(SIGFPE), Failed, "byteps: SIGFPE while loading x: ");
  const auto abort_within = [] {
    const CrashWitness witness("loading x");
    std::abort();
  };
  EXPECT_EXIT(abort_within(), Failed, "byteps: SIGABRT while loading x: ");
}

TEST_F(CrashWitnessTest, TheApplicationsHandlerComesNext) {
  const auto crash = [] {
    ::signal(SIGBUS, OwnHandler);
    const CrashWitness witness("loading x");
    ::raise(SIGBUS);
  };
  EXPECT_EXIT(crash(), testing::ExitedWithCode(7), "byteps: SIGBUS while loading x: [^\n]*\nthe handler of the app");
}

TEST_F(CrashWitnessTest, WhatWasThereBeforeIsThereAfterwards) {
  const Handler before = HandlerOf(SIGILL);
  {
    const CrashWitness witness("loading x");
    EXPECT_NE(HandlerOf(SIGILL), before);
  }
  EXPECT_EQ(HandlerOf(SIGILL), before);
  // What the code inside has set is its own.
  {
    const CrashWitness witness("loading x");
    ::signal(SIGILL, OwnHandler);
  }
  EXPECT_EQ(HandlerOf(SIGILL), &OwnHandler);
  ::signal(SIGILL, before);
}

// The crash of another thread is no news of this one.
TEST_F(CrashWitnessTest, ACrashOfAnotherThreadIsNotLaidToIt) {
  const auto crash = [] {
    ::signal(SIGBUS, OwnHandler);
    const CrashWitness witness("loading x");
    std::thread([] { ::raise(SIGBUS); }).join();
  };
  EXPECT_EXIT(crash(), testing::ExitedWithCode(7), "^the handler of the application");
}

// At the level of the log that is the default, at which the line about loading is not written.
TEST_F(CrashWitnessTest, APluginThatCrashesAsItIsLoadedIsNamed) {
  const std::string path = std::filesystem::absolute(std::getenv("CRASHES")).string();
  const auto load = [&] {
    const Config config = *Config::Make({});
    const Logger log(config.GetLogOptions());
    PluginRegistry registry(config, log);
    (void)registry.FindScheduler(path);
  };
  EXPECT_EXIT(load(), Failed, "^byteps: SIGSEGV while loading the scheduler plugin /.*_crashes.so: its own code has");
}

}  // namespace
}  // namespace byteps
