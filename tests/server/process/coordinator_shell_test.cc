// byteps_server as coordinator: a real process, spoken to over loopback sockets by real control links.
#include "server/process/coordinator_shell.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/control/control_codec.h"
#include "core/control/host_identity.h"
#include "server/process/listener.h"
#include "tests/server/membership/says.h"
#include "tests/server/process/child_process.h"
#include "tests/server/process/idleness.h"
#include "tests/server/process/real_job.h"

namespace byteps {
namespace {

UniqueFd RawConnection(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  struct sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Reads frames until the other side closes, and gives the last; with a deadline.
std::string LastWords(int fd, Time timeout = kPatience) {
  FrameReader reader(kMaxFrameBytes);
  control::Envelope envelope;
  std::string last = "nothing";
  const Time deadline = After(Now(), timeout);
  while (Now() < deadline) {
    struct pollfd wait = {fd, POLLIN, 0};
    if (::poll(&wait, 1, 100) <= 0) continue;
    char bytes[4096];
    const ssize_t got = ::recv(fd, bytes, sizeof(bytes), 0);
    if (got <= 0) return last;
    reader.Append(bytes, static_cast<size_t>(got));
    while (reader.Next(&envelope).value_or(false)) {
      last = envelope.has_failure() ? envelope.failure().error() : EnvelopeName(envelope);
    }
  }
  return "timeout after " + last;
}

TEST(CoordinatorShellTest, AJobFromStartToEnd) {
  CoordinatorProcess coordinator("BYTEPS_JOB_LINGER", "0");
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember a(LinkMember::MakeHello(control::WORKER, 0, 2), coordinator.port, "");
  LinkMember b(LinkMember::MakeHello(control::WORKER, 1, 2), coordinator.port, "");
  const std::vector<LinkMember*> all = {&server, &a, &b};
  ASSERT_TRUE(Drive(all, [&] { return !a.epochs.empty() && !b.epochs.empty() && !server.epochs.empty(); }))
      << a.failure << coordinator.child->Output();
  a.client().Barrier(Now(), "x", kPatience);
  b.client().Barrier(Now(), "x", kPatience);
  ASSERT_TRUE(Drive(all, [&] { return a.barriers.size() + b.barriers.size() == 2; }));
  EXPECT_TRUE(a.barriers[0].ok());
  a.client().Goodbye(Now(), kPatience);
  b.client().Goodbye(Now(), kPatience);
  ASSERT_TRUE(Drive(all, [&] { return !a.goodbyes.empty() && !b.goodbyes.empty() && !server.job_ended.empty(); }));
  EXPECT_TRUE(a.goodbyes[0].ok());
  EXPECT_EQ(coordinator.child->Wait(kPatience), 0) << coordinator.child->Output();
}

// By SIGUSR1 or SIGUSR2, which a batch system sends to every process.
TEST(CoordinatorShellTest, AWarningEndsNothing) {
  CoordinatorProcess coordinator;
  ASSERT_TRUE(coordinator.child->WaitForOutput("listening", kPatience));
  const auto warn = [&] {
    for (const int signal : {SIGUSR1, SIGUSR2}) coordinator.child->Signal(signal);
  };
  LinkMember server(control::SERVER, coordinator.port);
  for (int session = 0; session < 2; ++session) {
    warn();
    LinkMember worker(control::WORKER, coordinator.port);
    ASSERT_TRUE(Drive({&server, &worker}, [&] { return !worker.epochs.empty(); })) << coordinator.child->Output();
    warn();
    worker.client().Goodbye(Now(), kPatience);
    ASSERT_TRUE(Drive({&server, &worker}, [&] { return !worker.goodbyes.empty(); })) << coordinator.child->Output();
    EXPECT_TRUE(worker.goodbyes[0].ok());
  }
}

TEST(CoordinatorShellTest, AnIdleJobUsesNoCpu) {
  CoordinatorProcess coordinator;
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember worker(control::WORKER, coordinator.port);
  ASSERT_TRUE(Drive({&server, &worker}, [&] { return !worker.epochs.empty() && !server.epochs.empty(); }));
  EXPECT_TRUE(AreIdle({coordinator.child->pid()}, [&](Time time) {
    Drive(
        {&server, &worker}, [] { return false; }, time);
  })) << coordinator.child->Output();
}

// bpslaunch gives a coordinator a second after its SIGTERM. On a machine that has more to do one attempt may take
// longer.
TEST(CoordinatorShellTest, AMemberThatDoesNotMoveDoesNotKeepIt) {
  Time least = kNever;
  for (int attempt = 0; attempt < 5 && least >= kSecond; ++attempt) {
    CoordinatorProcess coordinator;
    LinkMember server(control::SERVER, coordinator.port);
    LinkMember worker(control::WORKER, coordinator.port);
    ASSERT_TRUE(Drive({&server, &worker}, [&] { return !worker.epochs.empty() && !server.epochs.empty(); }));
    const Time began = Now();
    coordinator.child->Signal(SIGTERM);
    // No member drives the server: as if it were stopped.
    ASSERT_TRUE(Drive({&worker}, [&] { return worker.state() == ControlState::kFailed; }));
    ASSERT_EQ(coordinator.child->Wait(kPatience), 0) << coordinator.child->Output();
    least = std::min(least, Now() - began);
    // When it goes on, it finds what it was told, though who told it is gone.
    ASSERT_TRUE(Drive({&server}, [&] { return !server.job_ended.empty(); })) << server.failure;
  }
  EXPECT_LT(least, kSecond);
}

TEST(CoordinatorShellTest, TheCoordinatorMayComeLast) {
  const int port = FreePort();
  LinkMember server(control::SERVER, port);
  LinkMember worker(control::WORKER, port);
  Drive(
      {&server, &worker}, [] { return false; }, 300 * kMillisecond);
  EXPECT_EQ(worker.state(), ControlState::kConnecting);
  ChildProcess child({ServerProgram()}, {{"DMLC_ROLE", "scheduler"},
                                         {"BYTEPS_JOB_ID", "job"},
                                         {"DMLC_PS_ROOT_URI", "localhost"},
                                         {"DMLC_PS_ROOT_PORT", std::to_string(port)}});
  EXPECT_TRUE(Drive({&server, &worker},
                    [&] {
                      return AllAre({&server, &worker}, ControlState::kActive);
                    }))
      << worker.failure << child.Output();
}

TEST(CoordinatorShellTest, AJobThatDoesNotComeTogetherEndsAndSaysWhoIsMissing) {
  const int port = FreePort();
  ChildProcess child({ServerProgram()}, {{"DMLC_ROLE", "scheduler"},
                                         {"BYTEPS_JOB_ID", "job"},
                                         {"BYTEPS_LOG_LEVEL", "info"},
                                         {"BYTEPS_START_TIMEOUT", "5"},
                                         {"DMLC_PS_ROOT_URI", "localhost"},
                                         {"DMLC_PS_ROOT_PORT", std::to_string(port)}});
  ASSERT_TRUE(child.WaitForOutput("listening at", kPatience));
  LinkMember server(control::SERVER, port, "", 5 * kSecond);
  ASSERT_TRUE(Drive({&server}, [&] { return server.state() == ControlState::kFailed; }));
  EXPECT_TRUE(Says(server.failure_text(), {"no session has started", "missing are all workers"}));
  EXPECT_EQ(child.Wait(kPatience), 1);
  EXPECT_TRUE(Says(child.Output(), {"byteps_server (coordinator): no session has started within", "all workers"}));
}

TEST(CoordinatorShellTest, AnAbsentCoordinatorIsNamedAtTheDeadline) {
  const int port = FreePort();
  LinkMember worker(control::WORKER, port, "", 2 * kSecond);
  ASSERT_TRUE(Drive({&worker}, [&] { return worker.state() == ControlState::kFailed; }));
  EXPECT_EQ(worker.failure.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(worker.failure_text(), {"127.0.0.1:" + std::to_string(port), "Connection refused", "2 s"}));
}

TEST(CoordinatorShellTest, AnotherProgramAtThatPortIsRecognised) {
  const UniqueFd listener = Listen({.host = "127.0.0.1", .port = 0}).value();
  LinkMember worker(control::WORKER, PortOf(listener));
  UniqueFd accepted;
  ASSERT_TRUE(Drive({&worker}, [&] {
    if (!accepted) {
      accepted.Reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (accepted) {
        EXPECT_EQ(::send(accepted.get(), "SSH-2.0-OpenSSH\r\n", 17, 0), 17);
      }
    }
    return worker.state() == ControlState::kFailed;
  }));
  EXPECT_TRUE(Says(worker.failure_text(), {"no BytePS control message", "127.0.0.1"}));
}

TEST(CoordinatorShellTest, AWorkersEndIsToldAtOnce) {
  CoordinatorProcess coordinator;
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember a(LinkMember::MakeHello(control::WORKER, 0, 2), coordinator.port, "");
  LinkMember b(LinkMember::MakeHello(control::WORKER, 1, 2), coordinator.port, "");
  ASSERT_TRUE(Drive({&server, &a, &b}, [&] { return AllAre({&server, &a, &b}, ControlState::kActive); }));
  b.Vanish();
  ASSERT_TRUE(Drive(
      {&server, &a}, [&] { return a.state() == ControlState::kFailed; }, kAtOnce));
  EXPECT_TRUE(Says(a.failure_text(), {"worker rank 1", "pid " + std::to_string(::getpid())}));
  EXPECT_EQ(server.state(), ControlState::kActive);
}

TEST(CoordinatorShellTest, TheEndOfAProcessCountsThoughAnotherHoldsItsConnection) {
  // The timeout of silent peers must not be what is seen.
  CoordinatorProcess coordinator("BYTEPS_PEER_TIMEOUT", "1000");
  ChildProcess process({"/bin/sleep", "1000"}, {});
  control::Hello hello = LinkMember::MakeHello(control::WORKER, 1, 2);
  hello.set_pid(process.pid());
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember a(LinkMember::MakeHello(control::WORKER, 0, 2), coordinator.port, "");
  LinkMember held(hello, coordinator.port, "");
  ASSERT_TRUE(Drive({&server, &a, &held}, [&] { return AllAre({&server, &a, &held}, ControlState::kActive); }));
  process.Signal(SIGKILL);
  ASSERT_TRUE(Drive({&server, &a, &held}, [&] { return a.state() == ControlState::kFailed; }));
  EXPECT_TRUE(Says(a.failure_text(), {"worker rank 1", "pid " + std::to_string(process.pid()), "its process has ended",
                                      "forked holds its connection"}));
  EXPECT_EQ(server.state(), ControlState::kActive);
}

// A process number of another PID namespace names a process here that has nothing to do with the job.
TEST(CoordinatorShellTest, TheEndOfAProcessOfAnotherPidNamespaceIsNoMembersEnd) {
  CoordinatorProcess coordinator("BYTEPS_PEER_TIMEOUT", "1000");
  ChildProcess other({"/bin/sleep", "1000"}, {});
  ChildProcess own({"/bin/sleep", "1000"}, {});
  control::Hello distant = LinkMember::MakeHello(control::WORKER, 0, 3);
  control::Hello watched = LinkMember::MakeHello(control::WORKER, 1, 3);
  distant.set_pid(other.pid());
  distant.mutable_host()->set_pid_namespace("pid:[1]");
  watched.set_pid(own.pid());
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember a(distant, coordinator.port, ""), b(watched, coordinator.port, "");
  LinkMember c(LinkMember::MakeHello(control::WORKER, 2, 3), coordinator.port, "");
  ASSERT_TRUE(Drive({&server, &a, &b, &c}, [&] { return AllAre({&server, &a, &b, &c}, ControlState::kActive); }));
  other.Signal(SIGKILL);
  ASSERT_TRUE(other.Wait(kPatience).has_value());
  // The coordinator looks at ends in the order in which they came: it has passed over the first when it reports this.
  own.Signal(SIGKILL);
  ASSERT_TRUE(Drive({&server, &a, &b, &c}, [&] { return c.state() == ControlState::kFailed; }));
  EXPECT_TRUE(Says(c.failure_text(), {"worker rank 1", "its process has ended"}));
}

TEST(CoordinatorShellTest, WhatAProcessSaidBeforeItsEndCounts) {
  CoordinatorProcess coordinator("BYTEPS_PEER_TIMEOUT", "1000");
  ChildProcess process({"/bin/sleep", "1000"}, {});
  control::Hello hello = LinkMember::MakeHello(control::WORKER, 1, 2);
  hello.set_pid(process.pid());
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember a(LinkMember::MakeHello(control::WORKER, 0, 2), coordinator.port, "");
  LinkMember held(hello, coordinator.port, "");
  ASSERT_TRUE(Drive({&server, &a, &held}, [&] { return AllAre({&server, &a, &held}, ControlState::kActive); }));
  held.client().Goodbye(Now(), kPatience);
  held.link().Drive(Now());
  process.Signal(SIGKILL);
  a.client().Barrier(Now(), "x", kPatience);
  a.client().Goodbye(Now(), kPatience);
  ASSERT_TRUE(Drive({&server, &a}, [&] { return !a.goodbyes.empty(); })) << a.failure;
  EXPECT_TRUE(a.goodbyes[0].ok()) << a.goodbyes[0];
  EXPECT_TRUE(a.failure.ok()) << a.failure;
}

// The first descriptor that this process does not have.
rlim_t NextDescriptor(pid_t process) {
  for (rlim_t fd = 0;; ++fd) {
    if (::access(("/proc/" + std::to_string(process) + "/fd/" + std::to_string(fd)).c_str(), F_OK) != 0) return fd;
  }
}

TEST(CoordinatorShellTest, AMemberThatFindsNoDescriptorLeftIsToldSo) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined behaviour sanitizer, which runs beside this one, looks at objects through a pipe";
#endif
  CoordinatorProcess coordinator("BYTEPS_PEER_TIMEOUT", "1000");
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember a(LinkMember::MakeHello(control::WORKER, 0, 3), coordinator.port, "");
  const auto registered = [](LinkMember* member) { return member->state() >= ControlState::kGathering; };
  ASSERT_TRUE(Drive({&server, &a}, [&] { return registered(&server) && registered(&a); }));
  const pid_t pid = coordinator.child->pid();
  struct rlimit before = {};
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, nullptr, &before), 0);
  const struct rlimit full = {NextDescriptor(pid), before.rlim_max};
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &full, nullptr), 0);
  for (int i = 0; i < 3; ++i) {
    LinkMember b(LinkMember::MakeHello(control::WORKER, 1, 3), coordinator.port, "");
    ASSERT_TRUE(Drive({&server, &a, &b}, [&] { return b.state() == ControlState::kFailed; })) << i;
    EXPECT_EQ(b.failure.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(Says(b.failure_text(), {"the coordinator", "Too many open files",
                                        "may have " + std::to_string(full.rlim_cur) + " open files", "ulimit -n"}));
  }
  ASSERT_TRUE(coordinator.child->WaitForOutput("ulimit -n", kPatience));
  // Those that wait see it in the list of whom they wait for.
  const auto told = [](const LinkMember& member) {
    const std::vector<std::string>& missing = member.link().client().missing();
    return std::any_of(missing.begin(), missing.end(),
                       [](const std::string& each) { return each.find("Too many open files") != std::string::npos; });
  };
  EXPECT_TRUE(Drive({&server, &a}, [&] { return told(a); }));
  // Those that are there are not disturbed, and with room again it is no longer said, and the job starts.
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &before, nullptr), 0);
  LinkMember b(LinkMember::MakeHello(control::WORKER, 1, 3), coordinator.port, "");
  EXPECT_TRUE(Drive({&server, &a, &b}, [&] { return registered(&b) && !told(a) && !told(b); }));
  LinkMember c(LinkMember::MakeHello(control::WORKER, 2, 3), coordinator.port, "");
  EXPECT_TRUE(Drive({&server, &a, &b, &c}, [&] { return AllAre({&server, &a, &b, &c}, ControlState::kActive); }));
}

TEST(CoordinatorShellTest, TokensAreChecked) {
  CoordinatorProcess coordinator("BYTEPS_JOB_TOKEN", "secret");
  LinkMember wrong(control::WORKER, coordinator.port, "guess");
  LinkMember none(control::WORKER, coordinator.port);
  ASSERT_TRUE(Drive({&wrong, &none}, [&] { return AllAre({&wrong, &none}, ControlState::kFailed); }));
  EXPECT_EQ(wrong.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(none.failure.code(), absl::StatusCode::kUnauthenticated);
  LinkMember server(control::SERVER, coordinator.port, "secret");
  LinkMember right(control::WORKER, coordinator.port, "secret");
  EXPECT_TRUE(Drive({&server, &right}, [&] { return AllAre({&server, &right}, ControlState::kActive); }));
  EXPECT_EQ(coordinator.child->Output().find("secret"), std::string::npos) << "the token was logged";
}

TEST(CoordinatorShellTest, SigtermEndsItCleanlyAndTellsAll) {
  for (const int signal : {SIGTERM, SIGINT}) {
    CoordinatorProcess coordinator;
    LinkMember server(control::SERVER, coordinator.port);
    LinkMember worker(control::WORKER, coordinator.port);
    ASSERT_TRUE(Drive({&server, &worker}, [&] { return AllAre({&server, &worker}, ControlState::kActive); }));
    coordinator.child->Signal(signal);
    ASSERT_TRUE(Drive({&server, &worker},
                      [&] { return worker.state() == ControlState::kFailed && !server.job_ended.empty(); }));
    EXPECT_TRUE(Says(worker.failure_text(), {signal == SIGTERM ? "SIGTERM" : "SIGINT"}));
    EXPECT_EQ(coordinator.child->Wait(kAtOnce), 0);
  }
}

TEST(CoordinatorShellTest, AKilledCoordinatorIsNamed) {
  CoordinatorProcess coordinator;
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember worker(control::WORKER, coordinator.port);
  ASSERT_TRUE(Drive({&server, &worker}, [&] { return AllAre({&server, &worker}, ControlState::kActive); }));
  coordinator.child->Signal(SIGKILL);
  ASSERT_TRUE(Drive({&server, &worker}, [&] { return AllAre({&server, &worker}, ControlState::kFailed); }));
  EXPECT_TRUE(Says(worker.failure_text(), {"127.0.0.1:" + std::to_string(coordinator.port)}));
}

// ---- Configuration ----

TEST(CoordinatorShellTest, APortInUseIsNamed) {
  const UniqueFd holder = Listen({.host = "127.0.0.1", .port = 0}).value();
  const std::string port = std::to_string(PortOf(holder));
  ChildProcess child({ServerProgram()},
                     {{"DMLC_ROLE", "scheduler"}, {"DMLC_PS_ROOT_URI", "127.0.0.1"}, {"DMLC_PS_ROOT_PORT", port}});
  EXPECT_EQ(child.Wait(kPatience), 1);
  EXPECT_TRUE(Says(child.Output(), {"127.0.0.1:" + port, "Address already in use", "DMLC_PS_ROOT_PORT"}));
}

TEST(CoordinatorShellTest, WhatIsWrongIsSaidAndTheExitCodeTellsWhoseFaultItIs) {
  struct Case {
    std::map<std::string, std::string> variables;
    int code;
    std::vector<std::string> words;
  };
  const std::map<std::string, std::string> place = {{"DMLC_PS_ROOT_URI", "127.0.0.1"}, {"DMLC_PS_ROOT_PORT", "0"}};
  const auto with = [&](std::map<std::string, std::string> more) {
    more.insert(place.begin(), place.end());
    more.insert({"DMLC_ROLE", "scheduler"});
    return more;
  };
  const std::vector<Case> cases = {
      {{{"DMLC_ROLE", "scheduler"}}, 2, {"DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"}},
      {{{"DMLC_ROLE", "worker"}}, 2, {"DMLC_ROLE=worker", "scheduler or server"}},
      {with({{"DMLC_ROLE", "boss"}}), 2, {"DMLC_ROLE", "boss"}},
      {with({{"BYTEPS_JOB_LINGER", "soon"}}), 2, {"BYTEPS_JOB_LINGER", "soon"}},
      {with({{"BYTEPS_COORDINATOR_FD", "500"}}), 2, {"BYTEPS_COORDINATOR_FD=500", "Bad file descriptor"}},
      {with({{"BYTEPS_COORDINATOR_FD", "0"}}), 2, {"BYTEPS_COORDINATOR_FD=0"}},
      {with({{"BYTEPS_LINGER_FD", "500"}}), 2, {"BYTEPS_LINGER_FD=500", "Bad file descriptor"}},
      {with({{"BYTEPS_JOB_TOKEN_FILE", "/nonexistent/token"}}), 1, {"/nonexistent/token"}},
      {with({{"DMLC_PS_ROOT_URI", "192.0.2.1"}}), 1, {"192.0.2.1:0", "no address of this host"}},
      {with({{"DMLC_USE_KUBERNETES", "1"}}), 1, {"BYTEPS_JOB_TOKEN", "BYTEPS_ALLOW_UNAUTHENTICATED=1"}},
  };
  for (const Case& each : cases) {
    ChildProcess child({ServerProgram()}, each.variables);
    EXPECT_EQ(child.Wait(kPatience), each.code) << child.Output();
    EXPECT_TRUE(Says(child.Output(), each.words));
  }
}

// As the members of the same start, which may have the same error, expect it: by a member that answers.
TEST(CoordinatorShellTest, WhatIsWrongWithItIsToldToThoseThatComeThenItEnds) {
  for (const auto& [name, value, code] : {std::tuple("DMLC_ENABLE_RDMA", "ucx", 2), {"BYTEPS_JOB_LINGER", "soon", 2}}) {
    const int port = FreePort();
    ChildProcess child({ServerProgram()}, {{"DMLC_ROLE", "scheduler"},
                                           {"BYTEPS_JOB_ID", "job"},
                                           {"DMLC_PS_ROOT_URI", "127.0.0.1"},
                                           {"DMLC_PS_ROOT_PORT", std::to_string(port)},
                                           {name, value}});
    ASSERT_TRUE(child.WaitForOutput(name, kPatience)) << "said at once";
    const std::vector<std::string> words = {"the coordinator (host", "cannot take part", name, value};
    LinkMember worker(control::WORKER, port);
    ASSERT_TRUE(Drive({&worker}, [&] { return worker.state() == ControlState::kFailed; }));
    EXPECT_TRUE(Says(worker.failure_text(), words));
    EXPECT_EQ(child.Wait(0), std::nullopt) << "somebody may be late";
    // A server with an error of its own.
    control::Hello hello = LinkMember::MakeHello(control::SERVER, 0, 1);
    hello.clear_lanes();
    hello.set_refusal("bad luck");
    LinkMember server(hello, port, "");
    ASSERT_TRUE(Drive({&server}, [&] { return server.state() == ControlState::kFailed; }));
    EXPECT_TRUE(Says(server.failure_text(), words));
    EXPECT_EQ(child.Wait(kAtOnce), code) << child.Output();
    EXPECT_TRUE(Says(child.Output(), words));
  }
}

// No member listens there, or not yet; its word would not be taken.
TEST(CoordinatorShellTest, WithoutATokenNoCoordinatorIsWaitedForOffLoopback) {
  const control::Hello hello = LinkMember::MakeHello(control::WORKER);
  // An address of this host that is no loopback one, where it has any; else (RFC 5737) one that no route leads to.
  const std::string host = OwnAddress({.coordinator = "192.0.2.1", .port = 9}).value_or("192.0.2.1");
  LinkMember worker(hello, FreePort(), "", kPatience, host);
  ASSERT_TRUE(Drive(
      {&worker}, [&] { return worker.state() == ControlState::kFailed; }, kAtOnce));
  EXPECT_EQ(worker.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(Says(worker.failure_text(), {host, "BYTEPS_JOB_TOKEN", "BYTEPS_ALLOW_UNAUTHENTICATED=1"}));
  // With a secret, a member that knows it may still come; at any address of this host it is a loopback one that
  // answers.
  LinkMember knows(hello, FreePort(), "a secret", kSecond, host);
  LinkMember near(hello, FreePort(), "", kSecond, "0.0.0.0");
  for (LinkMember* waits : {&knows, &near}) {
    ASSERT_TRUE(Drive({waits}, [&] { return waits->state() == ControlState::kFailed; }));
    EXPECT_EQ(waits->failure.code(), absl::StatusCode::kDeadlineExceeded) << waits->failure;
  }
}

TEST(CoordinatorShellTest, HelpAndVersion) {
  ChildProcess help({ServerProgram(), "--help"}, {});
  EXPECT_EQ(help.Wait(kPatience), 0);
  EXPECT_TRUE(Says(help.Output(), {"DMLC_ROLE=scheduler"}));
  ChildProcess version({ServerProgram(), "--version"}, {});
  EXPECT_EQ(version.Wait(kPatience), 0);
  EXPECT_TRUE(Says(version.Output(), {"byteps_server"}));
  ChildProcess wrong({ServerProgram(), "--port"}, {});
  EXPECT_EQ(wrong.Wait(kPatience), 2);
}

// ---- Strangers ----

TEST(CoordinatorShellTest, StrangersAreToldAndDisturbNoMember) {
  CoordinatorProcess coordinator;
  LinkMember server(control::SERVER, coordinator.port);
  ASSERT_TRUE(Drive({&server}, [&] { return server.state() == ControlState::kActive; }));

  const UniqueFd browser = RawConnection(coordinator.port);
  ASSERT_GT(::send(browser.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 0);
  EXPECT_TRUE(Says(LastWords(browser.get()), {"no BytePS control message"}));

  control::Envelope envelope;
  envelope.mutable_heartbeat();
  std::string frame = EncodeFrame(envelope).value();
  const UniqueFd impatient = RawConnection(coordinator.port);
  ASSERT_GT(::send(impatient.get(), frame.data(), frame.size(), 0), 0);
  EXPECT_TRUE(Says(LastWords(impatient.get()), {"a greeting was expected"}));

  frame[4] = 9;
  const UniqueFd newer = RawConnection(coordinator.port);
  ASSERT_GT(::send(newer.get(), frame.data(), frame.size(), 0), 0);
  EXPECT_TRUE(Says(LastWords(newer.get()), {"a role of another version", "9"}));

  // A frame larger than a stranger may send is refused by its header.
  envelope.mutable_failure()->set_error(std::string(kMaxHelloBytes + 1, 'x'));
  frame = EncodeFrame(envelope).value();
  const UniqueFd large = RawConnection(coordinator.port);
  ASSERT_GT(::send(large.get(), frame.data(), 100, 0), 0);
  EXPECT_TRUE(Says(LastWords(large.get()), {"at most 65536"}));

  LinkMember worker(control::WORKER, coordinator.port);
  EXPECT_TRUE(Drive({&server, &worker}, [&] { return worker.state() == ControlState::kActive; })) << worker.failure;
}

TEST(CoordinatorShellTest, StrangersAreLoggedNowAndThenAndARunningJobGoesOn) {
  CoordinatorProcess coordinator;
  LinkMember server(control::SERVER, coordinator.port);
  LinkMember worker(control::WORKER, coordinator.port);
  const auto active = [&] { return AllAre({&server, &worker}, ControlState::kActive); };
  ASSERT_TRUE(Drive({&server, &worker}, active));
  for (int i = 0; i < 200; ++i) {
    const UniqueFd stranger = RawConnection(coordinator.port);
    ASSERT_GT(::send(stranger.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 0);
    EXPECT_TRUE(Says(LastWords(stranger.get()), {"no BytePS control message"}));
  }
  // The first with its address and what was wrong; not all of them.
  ASSERT_TRUE(coordinator.child->WaitForOutput("turned away a connection from 127.0.0.1", kPatience));
  const std::string output = coordinator.child->Output();
  EXPECT_TRUE(Says(output, {"turned away a connection", "it starts with 47 45 54 20", "another program"}));
  size_t lines = 0;
  for (size_t at = 0; (at = output.find("turned away a connection", at)) != std::string::npos; ++at) ++lines;
  EXPECT_LT(lines, 100u) << output;
  EXPECT_TRUE(active()) << server.failure << worker.failure;
  worker.client().Barrier(Now(), "still there", kPatience);
  EXPECT_TRUE(Drive({&server, &worker}, [&] { return worker.barriers.size() == 1; }));
  EXPECT_TRUE(worker.barriers.at(0).ok()) << worker.barriers.at(0);
}

TEST(CoordinatorShellTest, ACrowdOfSilentStrangersDoesNotKeepMembersOut) {
  CoordinatorProcess coordinator;
  LinkMember server(control::SERVER, coordinator.port);
  ASSERT_TRUE(Drive({&server}, [&] { return server.state() == ControlState::kActive; }));
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < CoordinatorShell::kMaxStrangers + 100; ++i) {
    crowd.push_back(RawConnection(coordinator.port));
    Drive({&server}, [] { return true; });
  }
  LinkMember worker(control::WORKER, coordinator.port);
  EXPECT_TRUE(Drive({&server, &worker}, [&] { return worker.state() == ControlState::kActive; })) << worker.failure;
  // The oldest were dropped.
  EXPECT_TRUE(Says(LastWords(crowd.front().get()), {"challenge"}));
}

}  // namespace
}  // namespace byteps
