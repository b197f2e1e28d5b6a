// Endpoints in processes of their own, killed or stopped in the middle of everything.

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/child.h"
#include "tests/transport_plugins/shm/end.h"
#include "tests/transport_plugins/shm/process_memory_filter.h"

namespace byteps::testing {
namespace {

// Messages, writes and copies into the other's memory, as fast as it goes.
void Storm(End* end, const std::string& key) {
  const std::vector<std::byte> source = Pattern(kSize);
  const bps_remote remote{key.data(), key.size(), 0};
  for (uint32_t i = 0;; ++i) {
    end->Send(std::string(1 + i % 9000, 'm'));
    end->Write(source.data(), 1 + i * 4099 % kSize, key, i);
    if (i % 3 == 0) end->table().copy_to(end->transport(), kOther, &remote, source.data(), kSize / 4);
    end->Poll();
  }
}

TEST(ShmProcess, KilledInTheMiddleOfEverythingItIsSeenAtOnceAndNothingLandsAfterIt) {
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    Child child(Storm);
    End end;
    std::vector<std::byte> memory(kSize);
    bps_region* region = end.Reg(memory.data(), memory.size());
    child.Join(&end, region);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(end.Until([&] { return end.heard[BPS_EVENT_IMMEDIATE] > static_cast<size_t>(round) * 3; }));
    child.Signal(SIGKILL);
    ASSERT_TRUE(end.Until([&] { return end.heard[BPS_EVENT_PEER_DOWN] == 1; }, kAtOnce));
    EXPECT_EQ(end.Send("anybody there?"), BPS_UNAVAILABLE);
    end.table().unreg(end.transport(), region);
    std::fill(memory.begin(), memory.end(), std::byte{0xbb});
    end.Until([] { return false; }, std::chrono::milliseconds(20));
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0xbb}), static_cast<ptrdiff_t>(kSize));
    EXPECT_EQ(end.heard[BPS_EVENT_PEER_DOWN], 1u);
  }
}

TEST(ShmProcess, ADeathWakesASleeperEvenWhenAForkedChildHoldsTheConnection) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  Child child([&](End* end, const std::string&) {
    // As a data loader does: it inherits all descriptors and lives on.
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      sleep(60);
      _exit(0);
    }
    if (write(pipe_fds[1], &grandchild, sizeof grandchild) != sizeof grandchild) _exit(6);
    end->Send("ready");
    while (true) end->Poll();
  });
  End end;
  std::vector<std::byte> memory(64);
  child.Join(&end, end.Reg(memory.data(), memory.size()));
  if (HasFatalFailure()) return;
  pid_t grandchild = 0;
  ASSERT_EQ(read(pipe_fds[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  ASSERT_TRUE(end.Until([&] { return !end.messages.empty(); }));
  const auto began = Clock::now();
  child.Signal(SIGKILL);
  while (end.heard[BPS_EVENT_PEER_DOWN] == 0 && Clock::now() - began < kPatience) {
    if (end.Poll() != 0 || end.table().arm(end.transport()) != BPS_OK) continue;
    pollfd entry{end.table().wait_fd(end.transport()), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, 30'000), 1) << "nobody woke the sleeper";
  }
  EXPECT_EQ(end.heard[BPS_EVENT_PEER_DOWN], 1u);
  kill(grandchild, SIGKILL);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

// Stopped while it copies into our memory: the memory is ours again all the same.
TEST(ShmProcess, AStoppedWriterIsKilledBeforeItsMemoryIsGivenBack) {
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    Child child([](End* end, const std::string& key) {
      const std::vector<std::byte> source(kSize, std::byte{0x77});
      const bps_remote remote{key.data(), key.size(), 0};
      while (end->table().copy_to(end->transport(), kOther, &remote, source.data(), kSize) != BPS_OK) end->Poll();
      end->Send("begun");
      end->Poll();
      while (true) end->table().copy_to(end->transport(), kOther, &remote, source.data(), kSize);
    });
    End end;
    std::vector<std::byte> memory(kSize);
    bps_region* region = end.Reg(memory.data(), memory.size());
    child.Join(&end, region);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(end.Until([&] { return !end.messages.empty(); })) << end.log();
    child.Signal(SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(child.pid(), &status, WUNTRACED), child.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
    end.table().unreg(end.transport(), region);
    std::fill(memory.begin(), memory.end(), std::byte{0xbb});
    child.Signal(SIGCONT);
    end.Until([] { return false; }, std::chrono::milliseconds(50));
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0xbb}), static_cast<ptrdiff_t>(kSize));
  }
}

// Memory that no peer will ever fill: a peer that reads it stands still.
void* Quicksand() {
  const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) return nullptr;
  void* base = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register range{};
  range.range = {reinterpret_cast<uint64_t>(base), kSize};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  return ioctl(fd, UFFDIO_REGISTER, &range) == 0 ? base : nullptr;
}

// Is the process within this system call?
bool IsIn(pid_t pid, long call) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/syscall");
  long number = -1;
  return static_cast<bool>(file >> number) && number == call;
}

TEST(ShmProcess, AWriterThatDoesNotMoveIsWaitedForAndKilled) {
  Child child([](End* end, const std::string& key) {
    const void* source = Quicksand();
    end->Send(source == nullptr ? "none" : "begun");
    const bps_remote remote{key.data(), key.size(), 0};
    while (source == nullptr || end->table().copy_to(end->transport(), kOther, &remote, source, kSize) != BPS_OK) {
      end->Poll();
    }
  });
  End end;
  std::vector<std::byte> memory(kSize);
  bps_region* region = end.Reg(memory.data(), memory.size());
  child.Join(&end, region);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(end.Until([&] { return !end.messages.empty(); })) << end.log();
  if (end.messages[0] == "none") GTEST_SKIP() << "userfaultfd is not allowed here";
  if (!end.Until([&] { return IsIn(child.pid(), SYS_process_vm_writev); }, std::chrono::seconds(20))) {
    GTEST_SKIP() << "/proc/PID/syscall does not tell, or process_vm_writev is not used here";
  }
  end.table().unreg(end.transport(), region);
  EXPECT_NE(end.log().find("it is killed"), std::string::npos) << end.log();
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// It holds a pointer into our memory and does not let go.
TEST(ShmProcess, TheFenceKillsWhoKeepsPointersIntoOurMemory) {
  Child child([](End* end, const std::string& key) {
    const bps_remote remote{key.data(), key.size(), 0};
    void* base = nullptr;
    while (end->table().map_remote(end->transport(), kOther, &remote, kSize, &base) != BPS_OK) end->Poll();
    end->Send("mapped");
    while (true) std::memset(base, 0x77, kSize);
  });
  End end(std::map<std::string, std::string>{{"BYTEPS_PEER_TIMEOUT", "1"}});
  bps_region* region = nullptr;
  void* base = nullptr;
  ASSERT_EQ(end.table().allocate(end.transport(), kSize, &region, &base, nullptr), BPS_OK);
  child.Join(&end, region);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(end.Until([&] { return !end.messages.empty(); })) << end.log();
  ASSERT_EQ(end.table().disconnect(end.transport(), kOther), BPS_OK);
  ASSERT_TRUE(end.Until([&] { return end.heard[BPS_EVENT_DISCONNECTED] == 1; })) << end.log();
  std::memset(base, 0xbb, kSize);
  end.Until([] { return false; }, std::chrono::milliseconds(50));
  const auto* bytes = static_cast<const unsigned char*>(base);
  EXPECT_EQ(std::count(bytes, bytes + kSize, 0xbb), static_cast<ptrdiff_t>(kSize));
  EXPECT_NE(end.log().find("it is killed"), std::string::npos) << end.log();
  end.table().unreg(end.transport(), region);
}

// A memory file stays its owner's when it is taken back: a peer that is writing there has to come to an end first.
TEST(ShmProcess, AWriterOfAMemoryFileThatDoesNotEndIsKilled) {
  Child child([](End* end, const std::string& key) {
    const bps_remote remote{key.data(), key.size(), 0};
    void* base = nullptr;
    while (end->table().begin_write(end->transport(), kOther, &remote, kSize, &base) != BPS_OK) end->Poll();
    end->Send("writing");
    while (true) {
      std::memset(base, 0x77, kSize);
      end->Poll();
    }
  });
  End end;
  const MemoryFile file;
  ASSERT_NE(file.base(), MAP_FAILED);
  bps_region* region = nullptr;
  ASSERT_EQ(end.table().reg_shared(end.transport(), file.base(), kSize, file.fd(), &region, nullptr), BPS_OK);
  child.Join(&end, region);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(end.Until([&] { return !end.messages.empty(); })) << end.log();
  end.table().unreg(end.transport(), region);
  std::memset(file.base(), 0xbb, kSize);
  EXPECT_NE(end.log().find("it is killed"), std::string::npos) << end.log();
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const auto* bytes = static_cast<const unsigned char*>(file.base());
  EXPECT_EQ(std::count(bytes, bytes + kSize, 0xbb), static_cast<ptrdiff_t>(kSize));
}

// A child's: writes 0x70 to 0x77 into the other's memory file, and never comes to an end.
void WriteWithoutEnd(End* end, const std::string& key) {
  const bps_remote remote{key.data(), key.size(), 0};
  void* base = nullptr;
  while (end->table().begin_write(end->transport(), kOther, &remote, kSize, &base) != BPS_OK) end->Poll();
  std::memset(base, 0x77, kSize);
  end->Send("writing");
  end->Poll();
  for (unsigned value = 0;; ++value) std::memset(base, 0x70 | (value & 7), kSize);
}

// `take_back`, on a thread that may not signal any peer, gets memory back into which there are writers without end,
// with what is in it.
void TakeBackWithoutSignals(End* end, bps_region* region, const MemoryFile& file,
                            const std::function<void(End* end, bps_region* region)>& take_back) {
  bool forbidden = false;
  std::thread owner([&] {
    forbidden = ForbidSignals();
    take_back(end, region);
  });
  owner.join();
  ASSERT_TRUE(forbidden) << "no seccomp filter can be set here";
  EXPECT_NE(end->log().find("their bytes were copied"), std::string::npos) << end->log();
  const auto* bytes = static_cast<const unsigned char*>(file.base());
  EXPECT_EQ(std::count_if(bytes, bytes + kSize, [](unsigned char byte) { return byte >> 4 == 7; }),
            static_cast<ptrdiff_t>(kSize))
      << "what was there is not there any more";
}

// A writer that does not end and, as it is another user's, cannot be ended: `take_back`, on a thread that may not
// signal any peer, gets the memory back all the same, with what is in it. A third one, which has written there, too, is
// either lost or sees no file in it any more (`third_stays`).
void ExpectTakenOutOfReach(const std::function<void(End* end, bps_region* region)>& take_back, bool third_stays) {
  constexpr bps_peer kThird = 2;
  Child child(WriteWithoutEnd);
  Child third(
      [](End* end, const std::string& key) {
        const auto begin = [&](const std::string& of) {
          const bps_remote remote{of.data(), of.size(), 0};
          void* base = nullptr;
          int32_t code = BPS_TRANSPORT_AGAIN;  // UNAVAILABLE: not connected yet
          end->Until([&] {
            code = end->table().begin_write(end->transport(), kOther, &remote, kSize, &base);
            return code == BPS_OK || code == BPS_UNIMPLEMENTED;
          });
          if (code == BPS_OK) end->table().end_write(end->transport(), kOther, &remote);
          return std::to_string(code);
        };
        end->Send("first " + begin(key));
        end->Until([&] { return !end->messages.empty(); });
        end->Send("then " + begin(end->messages[0]));
        end->Until([] { return false; });
      },
      kThird);
  End end(std::map<std::string, std::string>{{"BYTEPS_PEER_TIMEOUT", "1"}});
  const MemoryFile file;
  ASSERT_NE(file.base(), MAP_FAILED);
  bps_region* region = nullptr;
  ASSERT_EQ(end.table().reg_shared(end.transport(), file.base(), kSize, file.fd(), &region, nullptr), BPS_OK);
  third.Join(&end, region);
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(end.Until([&] { return !end.messages.empty(); })) << end.log();
  ASSERT_EQ(end.messages[0], "first " + std::to_string(BPS_OK));
  child.Join(&end, region);
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(end.Until([&] { return end.messages.size() == 2; })) << end.log();
  TakeBackWithoutSignals(&end, region, file, take_back);
  if (::testing::Test::HasFatalFailure()) return;
  const auto* bytes = static_cast<const unsigned char*>(file.base());
  const std::vector<unsigned char> before(bytes, bytes + kSize);
  end.Until([] { return false; }, std::chrono::milliseconds(50));
  EXPECT_EQ(std::memcmp(before.data(), bytes, kSize), 0) << "written behind the fence";
  std::memset(file.base(), 0xbb, kSize);
  end.Until([] { return false; }, std::chrono::milliseconds(50));
  EXPECT_EQ(std::count(bytes, bytes + kSize, 0xbb), static_cast<ptrdiff_t>(kSize));
  EXPECT_EQ(waitpid(child.pid(), nullptr, WNOHANG), 0) << "it was ended";
  EXPECT_EQ(end.heard[BPS_EVENT_PEER_DOWN], third_stays ? 0u : 1u) << end.log();
  if (!third_stays) return;
  // Lent once more it is ordinary memory: others would see the file, and not what is here.
  bps_region* again = nullptr;
  ASSERT_EQ(end.table().reg_shared(end.transport(), file.base(), kSize, file.fd(), &again, nullptr), BPS_OK);
  ASSERT_EQ(end.Send(end.Key(again, kThird), kThird), BPS_OK);
  ASSERT_TRUE(end.Until([&] { return end.messages.size() == 3; })) << end.log();
  EXPECT_EQ(end.messages[2], "then " + std::to_string(BPS_UNIMPLEMENTED));
  end.table().unreg(end.transport(), again);
}

TEST(ShmProcess, AWriterThatCannotBeKilledWritesIntoNoPeersPagesBehindUnreg) {
  ExpectTakenOutOfReach([](End* end, bps_region* region) { end->table().unreg(end->transport(), region); }, true);
}

// The memory is still lent to others then, whose writes would be lost: they are told that they are.
TEST(ShmProcess, AWriterThatCannotBeKilledWritesIntoNoPeersPagesBehindDisconnect) {
  const auto disconnect = [](End* end, bps_region* region) {
    EXPECT_EQ(end->table().disconnect(end->transport(), kOther), BPS_OK);
    EXPECT_TRUE(end->Until([&] { return end->heard[BPS_EVENT_DISCONNECTED] == 1; })) << end->log();
    EXPECT_TRUE(end->Until([&] { return end->heard[BPS_EVENT_PEER_DOWN] == 1; }, kAtOnce)) << end->log();
    end->table().unreg(end->transport(), region);
  };
  ExpectTakenOutOfReach(disconnect, false);
}

// Two such writers at once: the second must not be found safe because of the first, nor undo what was done for it.
void ExpectOutOfReachOfBoth(const std::function<void(End* end, bps_region* region)>& take_back) {
  constexpr bps_peer kThird = 2;
  Child first(WriteWithoutEnd);
  Child second(WriteWithoutEnd, kThird);
  End end(std::map<std::string, std::string>{{"BYTEPS_PEER_TIMEOUT", "1"}});
  const MemoryFile file;
  ASSERT_NE(file.base(), MAP_FAILED);
  bps_region* region = nullptr;
  ASSERT_EQ(end.table().reg_shared(end.transport(), file.base(), kSize, file.fd(), &region, nullptr), BPS_OK);
  for (Child* child : {&first, &second}) {
    child->Join(&end, region);
    if (::testing::Test::HasFatalFailure()) return;
  }
  ASSERT_TRUE(end.Until([&] { return end.messages.size() == 2; })) << end.log();
  TakeBackWithoutSignals(&end, region, file, take_back);
  if (::testing::Test::HasFatalFailure()) return;
  const auto* bytes = static_cast<const unsigned char*>(file.base());
  std::memset(file.base(), 0xbb, kSize);
  end.Until([] { return false; }, std::chrono::milliseconds(50));
  EXPECT_EQ(std::count(bytes, bytes + kSize, 0xbb), static_cast<ptrdiff_t>(kSize)) << "written behind the fence";
  for (const Child* child : {&first, &second}) EXPECT_EQ(waitpid(child->pid(), nullptr, WNOHANG), 0) << "it was ended";
  EXPECT_EQ(end.log().find("until it ends it may write there"), std::string::npos) << end.log();
}

TEST(ShmProcess, TwoWritersThatCannotBeKilledWriteIntoNoPeersPagesBehindUnreg) {
  ExpectOutOfReachOfBoth([](End* end, bps_region* region) { end->table().unreg(end->transport(), region); });
}

TEST(ShmProcess, TwoWritersThatCannotBeKilledWriteIntoNoPeersPagesBehindDisconnect) {
  ExpectOutOfReachOfBoth([](End* end, bps_region* region) {
    for (const bps_peer peer : {kOther, bps_peer{2}}) {
      EXPECT_EQ(end->table().disconnect(end->transport(), peer), BPS_OK);
    }
    EXPECT_TRUE(end->Until([&] { return end->heard[BPS_EVENT_DISCONNECTED] == 2; })) << end->log();
    end->table().unreg(end->transport(), region);
  });
}

}  // namespace
}  // namespace byteps::testing
