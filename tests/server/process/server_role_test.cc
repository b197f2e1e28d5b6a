// byteps_server as server, beside byteps_server as coordinator: real processes, the tcp plugin, no tensors yet.
#include "server/process/server_role.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/config/config.h"
#include "core/plugin/plugin_registry.h"
#include "tests/server/membership/says.h"
#include "tests/server/process/child_process.h"
#include "tests/server/process/idleness.h"
#include "tests/server/process/real_job.h"

namespace byteps {
namespace {

std::string PluginFolder() {
  const std::string file = std::getenv("BYTEPS_TCP_PLUGIN");
  return file.substr(0, file.rfind('/'));
}

std::map<std::string, std::string> ServerVariables(int port) {
  return {{"DMLC_ROLE", "server"},
          {"DMLC_PS_ROOT_URI", "127.0.0.1"},
          {"DMLC_PS_ROOT_PORT", std::to_string(port)},
          {"DMLC_NUM_SERVER", "1"},
          {"BYTEPS_JOB_ID", "job"},
          {"BYTEPS_LOG_LEVEL", "info"},
          {"BYTEPS_SERVER_ENGINE_THREAD", "2"},
          {"BYTEPS_SERVER_MEMORY", "64M"},
          {"BYTEPS_PLUGIN_PATH", PluginFolder()}};
}

// A worker as far as the control plane sees: its transport is real, and says nothing.
class Worker {
 public:
  explicit Worker(int port)
      : config_(Config::Make({{"BYTEPS_PLUGIN_PATH", PluginFolder()}}).value()),
        registry_(config_, log_),
        transport_(registry_.OpenTransport("tcp", "127.0.0.1").value()) {
    control::Hello hello = LinkMember::MakeHello(control::WORKER);
    hello.mutable_lanes(0)->set_provider(transport_.provider());
    hello.mutable_lanes(0)->set_address(transport_.Address().value());
    member = std::make_unique<LinkMember>(hello, port, "");
  }

  std::unique_ptr<LinkMember> member;

 private:
  Config config_;
  Logger log_;
  PluginRegistry registry_;
  Transport transport_;
};

TEST(ServerRoleTest, ServesUntilTheJobIsOver) {
  CoordinatorProcess coordinator("BYTEPS_JOB_LINGER", "0");
  ChildProcess server({ServerProgram()}, ServerVariables(coordinator.port));
  Worker worker(coordinator.port);
  LinkMember& member = *worker.member;
  ASSERT_TRUE(Drive({&member}, [&] { return !member.epochs.empty(); })) << member.failure << server.Output();
  ASSERT_EQ(member.epochs[0].servers_size(), 1);
  EXPECT_EQ(member.epochs[0].servers(0).lanes_size(), 2);
  EXPECT_EQ(member.epochs[0].servers(0).lanes(1).transport(), "tcp");
  EXPECT_FALSE(member.epochs[0].servers(0).lanes(1).address().empty());
  EXPECT_EQ(member.epochs[0].servers(0).pid(), server.pid());
  EXPECT_EQ(member.epochs[0].slot_bytes(), 512u << 10);
  member.client().Goodbye(Now(), kPatience);
  ASSERT_TRUE(Drive({&member}, [&] { return !member.goodbyes.empty(); }));
  EXPECT_TRUE(member.goodbyes[0].ok());
  EXPECT_EQ(server.Wait(kPatience), 0) << server.Output();
  EXPECT_EQ(coordinator.child->Wait(kPatience), 0);
  EXPECT_TRUE(Says(server.Output(), {"the job is over"}));
}

TEST(ServerRoleTest, SigtermEndsItCleanlyAndTellsTheWorkers) {
  CoordinatorProcess coordinator;
  ChildProcess server({ServerProgram()}, ServerVariables(coordinator.port));
  Worker worker(coordinator.port);
  LinkMember& member = *worker.member;
  ASSERT_TRUE(Drive({&member}, [&] { return !member.epochs.empty(); })) << member.failure << server.Output();
  ASSERT_TRUE(server.WaitForOutput("generation 1", kPatience)) << server.Output();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(kAtOnce), 0) << server.Output();
  ASSERT_TRUE(Drive({&member}, [&] { return member.state() == ControlState::kFailed; }));
  EXPECT_TRUE(Says(member.failure_text(), {"server rank 0", "pid " + std::to_string(server.pid()), "told to end"}));
}

TEST(ServerRoleTest, AKilledServerIsNamedAtOnce) {
  CoordinatorProcess coordinator;
  ChildProcess server({ServerProgram()}, ServerVariables(coordinator.port));
  Worker worker(coordinator.port);
  LinkMember& member = *worker.member;
  ASSERT_TRUE(Drive({&member}, [&] { return !member.epochs.empty(); })) << member.failure << server.Output();
  server.Signal(SIGKILL);
  ASSERT_TRUE(Drive(
      {&member}, [&] { return member.state() == ControlState::kFailed; }, kAtOnce));
  EXPECT_TRUE(Says(member.failure_text(), {"server rank 0", "pid " + std::to_string(server.pid())}));
}

TEST(ServerRoleTest, SigtermBeforeTheCoordinatorIsThere) {
  ChildProcess server({ServerProgram()}, ServerVariables(FreePort()));
  ASSERT_TRUE(server.WaitForOutput("provider tcp", kPatience)) << server.Output();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(kAtOnce), 0) << server.Output();
}

TEST(ServerRoleTest, LosingTheCoordinatorIsAnErrorThatNamesIt) {
  CoordinatorProcess coordinator;
  ChildProcess server({ServerProgram()}, ServerVariables(coordinator.port));
  ASSERT_TRUE(server.WaitForOutput("registered", kPatience)) << server.Output();
  coordinator.child->Signal(SIGKILL);
  EXPECT_EQ(server.Wait(kAtOnce), 1);
  EXPECT_TRUE(Says(server.Output(), {"lost the coordinator 127.0.0.1:" + std::to_string(coordinator.port)}));
}

TEST(ServerRoleTest, WhatIsWrongIsSaid) {
  struct Case {
    const char* name;
    const char* value;
    int code;
    std::vector<std::string> words;
  };
  for (const Case& each :
       {Case{"DMLC_NUM_SERVER", "0", 2, {"DMLC_NUM_SERVER"}}, Case{"DMLC_PS_ROOT_PORT", "0", 2, {"DMLC_PS_ROOT_PORT"}},
        Case{"BYTEPS_TRANSPORT", "pigeon", 1, {"pigeon", "BYTEPS_TRANSPORT", PluginFolder()}},
        Case{"DMLC_INTERFACE", "none7", 2, {"DMLC_INTERFACE=none7", "lo"}},
        Case{"BYTEPS_START_TIMEOUT", "1", 1, {"127.0.0.1", "Connection refused", "1 s"}}}) {
    std::map<std::string, std::string> variables = ServerVariables(FreePort());
    variables["BYTEPS_START_TIMEOUT"] = "3";  // it would tell a coordinator
    variables[each.name] = each.value;
    ChildProcess server({ServerProgram()}, variables);
    EXPECT_EQ(server.Wait(kPatience), each.code) << each.name << ": " << server.Output();
    EXPECT_TRUE(Says(server.Output(), each.words)) << each.name;
  }
}

TEST(ServerRoleTest, WhatIsWrongIsToldToACoordinatorThatComesLater) {
  for (const auto& [name, value] : std::map<std::string, std::string>{{"BYTEPS_SERVER_MEMORY", "lots"},
                                                                      {"DMLC_NUM_SERVER", "some"},
                                                                      {"DMLC_INTERFACE", "none7"},
                                                                      {"BYTEPS_TRANSPORT", "pigeon"}}) {
    SCOPED_TRACE(name);
    const int port = FreePort();
    std::map<std::string, std::string> variables = ServerVariables(port);
    variables[name] = value;
    ChildProcess server({ServerProgram()}, variables);
    ASSERT_TRUE(server.WaitForOutput("waits for the coordinator at 127.0.0.1", kPatience)) << server.Output();
    ChildProcess coordinator({ServerProgram()}, {{"DMLC_ROLE", "scheduler"},
                                                 {"DMLC_PS_ROOT_URI", "127.0.0.1"},
                                                 {"DMLC_PS_ROOT_PORT", std::to_string(port)},
                                                 {"BYTEPS_JOB_ID", "job"},
                                                 {"BYTEPS_LOG_LEVEL", "info"}});
    EXPECT_NE(server.Wait(kPatience), 0);
    const std::string cannot = "pid " + std::to_string(server.pid()) + ") cannot take part: ";
    EXPECT_TRUE(Says(server.Output(), {"server (host \"", cannot, name, value}));
    // Who comes later still is told the same.
    Worker worker(port);
    LinkMember& member = *worker.member;
    ASSERT_TRUE(Drive({&member}, [&] { return member.state() == ControlState::kFailed; }));
    EXPECT_TRUE(Says(member.failure_text(), {"server (host \"", cannot, name, value}));
    coordinator.Signal(SIGTERM);
    EXPECT_TRUE(coordinator.Wait(kAtOnce).has_value()) << coordinator.Output();
  }
}

TEST(ServerRoleTest, SigtermEndsTheWaitForACoordinatorToTell) {
  std::map<std::string, std::string> variables = ServerVariables(FreePort());
  variables["BYTEPS_SERVER_MEMORY"] = "lots";
  ChildProcess server({ServerProgram()}, variables);
  ASSERT_TRUE(server.WaitForOutput("waits for the coordinator", kPatience)) << server.Output();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(kAtOnce), 2) << server.Output();
  EXPECT_TRUE(Says(server.Output(), {"byteps_server (configuration): BYTEPS_SERVER_MEMORY=lots"}));
}

// Who starts programs without standard streams (some daemons do) must not find log lines among their messages: the next
// descriptor that is opened would be one of them.
TEST(ServerRoleTest, WithoutStandardStreamsTheJobIsTheSame) {
  const std::vector<std::string> closed = {"/bin/sh", "-c", "exec \"$0\" <&- >&- 2>&-", ServerProgram()};
  const int port = FreePort();
  std::map<std::string, std::string> variables = ServerVariables(port);
  variables["BYTEPS_LOG_LEVEL"] = "trace";
  variables["PS_VERBOSE"] = "2";
  ChildProcess server(closed, variables);
  variables["DMLC_ROLE"] = "scheduler";
  variables["BYTEPS_JOB_LINGER"] = "0";
  ChildProcess coordinator(closed, variables);
  Worker worker(port);
  LinkMember& member = *worker.member;
  ASSERT_TRUE(Drive(
      {&member}, [&] { return !member.epochs.empty() || !member.failure.ok(); }, kPatience / 2));
  EXPECT_TRUE(member.failure.ok()) << member.failure;
  for (const ChildProcess* each : {&server, &coordinator}) {
    for (const char* stream : {"0", "1", "2"}) {
      const std::string link = "/proc/" + std::to_string(each->pid()) + "/fd/" + stream;
      char target[64] = {};
      ASSERT_GT(::readlink(link.c_str(), target, sizeof target - 1), 0) << link;
      EXPECT_STREQ(target, "/dev/null") << link;
    }
  }
  member.client().Goodbye(Now(), kPatience);
  ASSERT_TRUE(Drive({&member}, [&] { return !member.goodbyes.empty(); }));
  EXPECT_EQ(server.Wait(kPatience / 2), 0);
  EXPECT_EQ(coordinator.Wait(kPatience / 2), 0);
}

TEST(ServerRoleTest, AnIdleServerUsesNoCpu) {
  CoordinatorProcess coordinator;
  ChildProcess server({ServerProgram()}, ServerVariables(coordinator.port));
  Worker worker(coordinator.port);
  LinkMember& member = *worker.member;
  ASSERT_TRUE(Drive({&member}, [&] { return !member.epochs.empty(); })) << member.failure << server.Output();
  // The lanes call a worker that does not answer, ten times a second.
  EXPECT_TRUE(AreIdle({server.pid()}, [&](Time time) {
    Drive(
        {&member}, [] { return false; }, time);
  })) << server.Output();
}

}  // namespace
}  // namespace byteps
