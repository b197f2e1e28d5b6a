// bps_info --check: real jobs over real transports, and what it says of those that do not work.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/info_program.h"

namespace byteps {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const char kScheduler[] = "scheduler_plugins/credit";
const char kTcp[] = "transport_plugins/libfabric";
const char kShm[] = "transport_plugins/shm";

// Folders of one plugin each: those of tests/plugins lie together, and few of them may be seen.
class Folder {
 public:
  explicit Folder(const std::string& plugin) {
    std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/plugin.XXXXXX";
    path_ = ::mkdtemp(folder.data());
    const std::string file = "libbyteps_transport_" + plugin + ".so";
    std::filesystem::create_symlink(Root() + "/tests/plugins/" + file, path_ + "/" + file);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  // From the root of the tree.
  std::string path() const { return std::filesystem::relative(path_, Root()).string(); }

 private:
  std::string path_;
};

std::vector<pid_t> ChildrenOf(pid_t pid) {
  const std::string task = std::to_string(pid);
  std::ifstream file("/proc/" + task + "/task/" + task + "/children");
  std::vector<pid_t> children;
  for (pid_t child; file >> child;) children.push_back(child);
  return children;
}

bool Runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] != 'Z';
}

template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TEST(LoopbackCheckTest, EveryUsableTransportCarriesAPushPull) {
  const Folder absent("failsprobe");
  // What says which job a process is of must not disturb, and shared memory must not do the network's work.
  const Outcome outcome = RunInfo("--check --timeout 120", {kScheduler, kTcp, kShm, absent.path()},
                                  "DMLC_ROLE=worker DMLC_NUM_WORKER=3 DMLC_NUM_SERVER=5 BYTEPS_LOCAL_RANK=7 "
                                  "BYTEPS_LOCAL_SIZE=9 BYTEPS_SHM=1 BYTEPS_LOCAL_REDUCE=0 BYTEPS_JOB_ID=other");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const std::string times = "ok +4 bytes in [0-9]+ us, 16 MB in [0-9.]+ ms \\([0-9.]+ GB/s\\), ";
  EXPECT_THAT(outcome.output, ContainsRegex("\n  tcp +" + times + "at 127.0.0.1\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("\n  shm +" + times + "at 127.0.0.1\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("\n  local +" + times + "by the workers themselves"));
  EXPECT_THAT(outcome.output, HasSubstr("\n  failsprobe not usable: no device named mlx5_7\n"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("ERROR")));
}

bool HasIpv6() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  struct sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool has = fd >= 0 && ::bind(fd, reinterpret_cast<struct sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) ::close(fd);
  return has;
}

TEST(LoopbackCheckTest, ItGoesByTheAddressOfTheRootIfThatIsOneOfLoopback) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  const Outcome six = RunInfo("--check --timeout 120", {kScheduler, kTcp, kShm}, "DMLC_PS_ROOT_URI=::1");
  EXPECT_EQ(six.code, 0) << six.output;
  EXPECT_THAT(six.output, ContainsRegex("\n  tcp +ok .*, at ::1\n"));
  EXPECT_THAT(six.output, ContainsRegex("\n  shm +ok .*, at ::1\n"));
  EXPECT_THAT(six.output, ContainsRegex("\n  local +ok "));
  const Outcome other = RunInfo("--check --timeout 120", {kScheduler, kTcp}, "DMLC_PS_ROOT_URI=10.255.255.1");
  EXPECT_THAT(other.output, ContainsRegex("\n  tcp +ok .*, at 127.0.0.1\n"));
}

// 192.0.2.0/24 is for documentation (RFC 5737).
TEST(LoopbackCheckTest, AnAddressThatThisHostDoesNotHaveIsNamedByItsVariable) {
  const Outcome outcome = RunInfo("--check --timeout 120", {kScheduler, kTcp, kShm}, "DMLC_NODE_HOST=192.0.2.77");
  EXPECT_EQ(outcome.code, 1);
  for (const char* name : {"tcp", "shm"}) {
    EXPECT_THAT(outcome.output,
                ContainsRegex("\n  " + std::string(name) +
                              " +ERROR DMLC_NODE_HOST=192.0.2.77: no network interface of this host has that address"));
  }
  EXPECT_THAT(outcome.output, Not(HasSubstr("set DMLC_PS_ROOT_URI")));
}

TEST(LoopbackCheckTest, WithoutLoopbackItSaysWhatBringsItUp) {
  const std::string own_network =
      std::system("unshare --net true 2>/dev/null") == 0 ? "unshare --net " : "unshare --map-root-user --net ";
  if (std::system((own_network + "true 2>/dev/null").c_str()) != 0) GTEST_SKIP() << "no network namespaces here";
  const Outcome outcome = RunCommand(own_network + InfoCommand("--check --timeout 120", {kScheduler, kTcp, kShm}));
  EXPECT_EQ(outcome.code, 1);
  for (const char* name : {"tcp", "shm"}) {
    EXPECT_THAT(outcome.output,
                ContainsRegex("\n  " + std::string(name) +
                              " +ERROR neither 127.0.0.1 nor ::1 can be reached: .* ip link set lo up"));
  }
}

TEST(LoopbackCheckTest, WithoutTheOptionNothingIsStarted) {
  EXPECT_THAT(RunInfo("", {kScheduler, kTcp}).output, Not(HasSubstr("4 bytes in")));
}

TEST(LoopbackCheckTest, ATransportThatDoesNotOpenIsAnError) {
  const Folder fails("failsopen");
  const Outcome outcome = RunInfo("--check --timeout 120", {kScheduler, kTcp, fails.path()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, ContainsRegex("\n  failsopen ERROR .*the network is on strike\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("\n  tcp +ok"));
}

TEST(LoopbackCheckTest, SaysTheSameToPrograms) {
  const Folder fails("failsopen");
  const Folder absent("failsprobe");
  const Outcome outcome =
      RunInfo("--check --json --timeout 120", {kScheduler, kTcp, kShm, fails.path(), absent.path()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << "one line: " << outcome.output;
  const std::string times = "\", \"result\": \"ok\", \"small_us\": [0-9.e+]+, \"large_us\": [0-9.e+]+";
  for (const char* name : {"tcp", "shm", "local"}) {
    EXPECT_THAT(outcome.output, ContainsRegex("\"name\": \"" + std::string(name) + times));
  }
  EXPECT_THAT(outcome.output,
              HasSubstr("{\"name\": \"failsprobe\", \"result\": \"not usable\", \"why\": \"no device named"));
  EXPECT_THAT(outcome.output,
              ContainsRegex("\"name\": \"failsopen\", \"result\": \"error\", \"why\": \".*the network is on strike\""));
}

TEST(LoopbackCheckTest, ATransportThatDoesNotConnectIsAnError) {
  const Folder idle("idle");
  const Outcome outcome = RunInfo("--check --timeout 120", {kScheduler, idle.path()}, "BYTEPS_TRANSPORT=idle");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, ContainsRegex("\n  idle +ERROR worker [01] has ended with code 1: .*cannot connect"));
}

// A coordinator and a server that say nothing.
class Silence {
 public:
  Silence() {
    std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/silence.XXXXXX";
    const int fd = ::mkstemp(file.data());
    path_ = file;
    constexpr char kScript[] = "#!/bin/sh\nexec sleep 600\n";
    EXPECT_EQ(::write(fd, kScript, sizeof(kScript) - 1), static_cast<ssize_t>(sizeof(kScript) - 1));
    ::fchmod(fd, 0755);
    ::close(fd);
  }
  ~Silence() { std::filesystem::remove(path_); }

  std::string variable() const { return "BYTEPS_SERVER_BINARY=" + path_; }

 private:
  std::string path_;
};

TEST(LoopbackCheckTest, ACoordinatorThatSaysNothingIsAnErrorInTime) {
  const Silence silence;
  const Outcome outcome = RunInfo("--check --timeout 3", {kScheduler, kTcp}, silence.variable());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output,
              ContainsRegex("\n  tcp +ERROR worker [01] has ended with code 1: bps_open: .*coordinator"));
}

TEST(LoopbackCheckTest, WhatIsMissingOrBrokenIsNamed) {
  Outcome outcome = RunInfo("--check", {kScheduler, kTcp}, "BYTEPS_SERVER_BINARY=/nowhere/byteps_server");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("cannot be done: byteps_server was not found; sought: /nowhere/byteps_server"));
  outcome = RunInfo("--check", {kScheduler, kTcp}, "BYTEPS_SERVER_BINARY=/bin/false");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, ContainsRegex("tcp +ERROR the (coordinator|server) has ended with code 1"));
  outcome = RunInfo("--check", {kScheduler, kTcp}, "BYTEPS_LIBRARY=/dev/null");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, ContainsRegex("tcp +ERROR worker [01] has ended with code 1: /dev/null"));
  outcome = RunInfo("--check --timeout soon", {kScheduler});
  EXPECT_EQ(outcome.code, 2);
}

TEST(LoopbackCheckTest, NothingIsLeftWhenItIsKilled) {
  const Silence silence;
  const std::string command = InfoCommand("--check --timeout 600", {kScheduler, kTcp}, silence.variable());
  const pid_t pid = fork();
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", ("exec " + command + " > /dev/null 2>&1").c_str(), nullptr);
    _exit(127);
  }
  std::vector<pid_t> children;
  EXPECT_TRUE(Eventually([&] {
    children = ChildrenOf(pid);
    return children.size() == 4;  // coordinator, server, two workers
  }));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  for (const pid_t child : children) {
    EXPECT_TRUE(Eventually([&] { return !Runs(child); })) << child;
  }
}

}  // namespace
}  // namespace byteps
