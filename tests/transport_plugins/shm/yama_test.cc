// Where Yama lets a process only into its descendants (ptrace_scope 1): who lets in whom, and when.
//
// Few kernels of test machines have Yama, so what it does is done here, by its rules (Documentation/admin-guide/LSM):
// this program has its own open, prctl and process_vm_readv, which the transport that is linked into it calls.

#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/end.h"

namespace byteps::testing {
namespace {

constexpr int kProcesses = 3;
constexpr size_t kBytes = 100'000;

pid_t ParentOf(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t name = text.rfind(')');
  return name == std::string::npos ? 0 : static_cast<pid_t>(std::stol(text.substr(name + 4)));
}

bool DescendsFrom(pid_t process, pid_t ancestor) {
  while (process > 1 && process != ancestor) process = ParentOf(process);
  return process == ancestor;
}

// What the processes of a test share.
struct Shared {
  struct Process {
    std::atomic<pid_t> pid{0};
    std::atomic<pid_t> lets_in{0};  // by PR_SET_PTRACER
    std::atomic<int> calls{0};      // of it
    std::atomic<bool> any{false};   // ... with PR_SET_PTRACER_ANY
    char address[BPS_TRANSPORT_MAX_ADDRESS] = {};
    size_t address_size = 0;
    char keys[kProcesses][256] = {};  // by who may use it
    std::array<std::atomic<bool>, kProcesses> refused{};
    std::array<std::atomic<bool>, kProcesses> reads{};  // whose memory it reads without a detour
  };
  char scope = '0';
  std::array<Process, kProcesses> processes;
  std::atomic<int> arrived{0};

  int IndexOf(pid_t pid) const {
    for (int i = 0; i < kProcesses; ++i) {
      if (processes[static_cast<size_t>(i)].pid == pid) return i;
    }
    return -1;
  }
  // May this process look into that one?
  bool Allows(pid_t target_pid) {
    const int reader = IndexOf(getpid()), target = IndexOf(target_pid);
    if (scope == '0' || reader < 0 || target < 0 || reader == target) return true;
    // As if all met at the same moment: each has tried once before any peer could let it in.
    Process& there = processes[static_cast<size_t>(target)];
    if (!there.refused[static_cast<size_t>(reader)].exchange(true)) return false;
    return scope == '1' && there.lets_in != 0 && DescendsFrom(getpid(), there.lets_in);
  }
};

Shared* g_shared = nullptr;  // the functions below know nothing else

}  // namespace
}  // namespace byteps::testing

using byteps::testing::g_shared;

extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals, const iovec* remote,
                                    unsigned long remotes, unsigned long flags) __THROW {
  if (g_shared != nullptr && !g_shared->Allows(pid)) {
    errno = EPERM;
    return -1;
  }
  return ::syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
}

extern "C" int prctl(int option, ...) __THROW {
  va_list list;
  va_start(list, option);
  unsigned long arguments[4];
  for (unsigned long& each : arguments) each = va_arg(list, unsigned long);
  va_end(list);
  const int self = g_shared == nullptr ? -1 : g_shared->IndexOf(getpid());
  if (option != PR_SET_PTRACER || self < 0) {
    return static_cast<int>(::syscall(SYS_prctl, option, arguments[0], arguments[1], arguments[2], arguments[3]));
  }
  auto& process = g_shared->processes[static_cast<size_t>(self)];
  ++process.calls;
  if (arguments[0] == PR_SET_PTRACER_ANY) process.any = true;
  process.lets_in = static_cast<pid_t>(arguments[0]);
  return 0;
}

extern "C" int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (g_shared == nullptr || std::strcmp(path, "/proc/sys/kernel/yama/ptrace_scope") != 0) {
    return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  }
  const int fd = memfd_create("ptrace_scope", MFD_CLOEXEC);
  const char text[] = {g_shared->scope, '\n'};
  if (write(fd, text, sizeof text) != sizeof text || lseek(fd, 0, SEEK_SET) != 0) return -1;
  return fd;
}

namespace byteps::testing {
namespace {

bps_peer NumberOf(int index) { return static_cast<bps_peer>(1 + index); }

class YamaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* base = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(base, MAP_FAILED);
    g_shared = new (base) Shared;
  }
  void TearDown() override { munmap(std::exchange(g_shared, nullptr), sizeof(Shared)); }

  // Processes that know `launcher` (0: none) meet, and each tries to read the memory of all others, until it can if
  // that is what is expected. Returns how many of the ways between them are without a detour.
  int Meet(char scope, pid_t launcher, bool expected) {
    g_shared->scope = scope;
    std::vector<pid_t> children;
    for (int self = 0; self < kProcesses; ++self) {
      const pid_t child = fork();
      if (child != 0) {
        children.push_back(child);
        continue;
      }
      try {
        Run(self, launcher, expected);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "process %d: %s\n", self, error.what());
        _exit(5);
      }
      _exit(0);
    }
    for (const pid_t child : children) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    int ways = 0;
    for (const auto& process : g_shared->processes) {
      for (const auto& reads : process.reads) ways += reads;
    }
    return ways;
  }

 private:
  // Until all are so far, too; others may need our answers meanwhile.
  static void Together(End* end, int* stage) {
    ++g_shared->arrived;
    ++*stage;
    if (!end->Until([&] { return g_shared->arrived >= *stage * kProcesses; })) {
      throw std::runtime_error("the others do not come to stage " + std::to_string(*stage));
    }
  }

  static void Run(int self, pid_t launcher, bool expected) {
    auto& processes = g_shared->processes;
    auto& mine = processes[static_cast<size_t>(self)];
    mine.pid = getpid();
    End end({{"BYTEPS_LAUNCHER_PID", std::to_string(launcher)}});
    mine.address_size = end.address().size();
    std::memcpy(mine.address, end.address().data(), mine.address_size);
    std::vector<std::byte> memory(kBytes, static_cast<std::byte>(self + 1));
    bps_region* region = end.Reg(memory.data(), memory.size());
    int stage = 0;
    Together(&end, &stage);
    for (int other = 0; other < kProcesses; ++other) {
      if (other == self) continue;
      const auto& theirs = processes[static_cast<size_t>(other)];
      if (end.Connect({theirs.address, theirs.address_size}, NumberOf(other), NumberOf(self)) != BPS_OK) {
        throw std::runtime_error(end.failure());
      }
      const std::string key = end.Key(region, NumberOf(other));
      if (key.size() > sizeof mine.keys[0]) throw std::runtime_error("a large key");
      std::memcpy(mine.keys[other], key.data(), key.size());
    }
    Together(&end, &stage);
    // Two messages each way: a peer that is to be let in has heard of it by then, or nearly so.
    for (size_t round = 1; round <= 2; ++round) {
      for (int other = 0; other < kProcesses; ++other) {
        if (other == self) continue;
        if (!end.Until([&] { return end.Send("hello", NumberOf(other)) == BPS_OK; })) throw std::runtime_error("send");
      }
      if (!end.Until([&] { return end.messages.size() >= round * (kProcesses - 1); })) throw std::runtime_error("hear");
    }
    Together(&end, &stage);
    for (int other = 0; other < kProcesses; ++other) {
      if (other == self) continue;
      end.Until([&] { return (mine.reads[static_cast<size_t>(other)] = Reads(&end, self, other)) || !expected; });
    }
    Together(&end, &stage);
  }

  static bool Reads(End* end, int self, int other) {
    const auto& theirs = g_shared->processes[static_cast<size_t>(other)];
    std::vector<std::byte> copy(kBytes);
    const bps_remote remote{theirs.keys[self], end->key_size(), 0};
    const int32_t code = end->table().copy_from(end->transport(), NumberOf(other), &remote, copy.data(), kBytes);
    if (code != BPS_OK && code != BPS_UNIMPLEMENTED) throw std::runtime_error("copy_from: " + std::to_string(code));
    if (code == BPS_OK && copy != std::vector<std::byte>(kBytes, static_cast<std::byte>(other + 1))) {
      throw std::runtime_error("other bytes");
    }
    return code == BPS_OK;
  }
};

TEST_F(YamaTest, APeerThatWasStartedByTheSameLauncherIsLetInHoweverManyCameAtOnce) {
  EXPECT_EQ(Meet('1', getpid(), true), kProcesses * (kProcesses - 1));
  for (const auto& process : g_shared->processes) {
    EXPECT_EQ(process.calls, 1);
    EXPECT_EQ(process.lets_in, getpid());
    EXPECT_FALSE(process.any);
  }
}

TEST_F(YamaTest, NoPeerIsLetInWhereNoLauncherIsKnown) {
  EXPECT_EQ(Meet('1', 0, false), 0);
  for (const auto& process : g_shared->processes) EXPECT_EQ(process.calls, 0);
}

TEST_F(YamaTest, NoPeerIsLetInWhereThatWouldNotHelp) {
  EXPECT_EQ(Meet('2', getpid(), false), 0);
  for (const auto& process : g_shared->processes) EXPECT_EQ(process.calls, 0);
}

TEST_F(YamaTest, NothingIsPermittedWhereNothingIsForbidden) {
  EXPECT_EQ(Meet('0', getpid(), true), kProcesses * (kProcesses - 1));
  for (const auto& process : g_shared->processes) EXPECT_EQ(process.calls, 0);
}

}  // namespace
}  // namespace byteps::testing
