// Endpoints in processes of their own: killed in the middle of everything, stopped, hindered by the system.

#include <dirent.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/end.h"
#include "tests/transport_plugins/shm/process_memory_filter.h"

namespace byteps::testing {
namespace {

constexpr size_t kSize = size_t{8} << 20;
constexpr std::chrono::seconds kAtOnce(2);

void WriteText(int fd, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  if (write(fd, &size, 4) != 4 || write(fd, text.data(), size) != static_cast<ssize_t>(size)) _exit(3);
}

std::string ReadText(int fd) {
  uint32_t size = 0;
  if (read(fd, &size, 4) != 4) throw std::runtime_error("the child has ended");
  std::string text(size, '\0');
  for (size_t got = 0; got < size;) {
    const ssize_t n = read(fd, text.data() + got, size - got);
    if (n <= 0) throw std::runtime_error("the child has ended");
    got += static_cast<size_t>(n);
  }
  return text;
}

// A process with an endpoint, made before this one opens its own. It runs `before`, tells its address, connects to the
// one it is told, and then runs `body` with the key that it is told for good. `number`: what we call it.
class Child {
 public:
  using Body = std::function<void(End* end, const std::string& key)>;
  Child(std::function<void()> before, Body body, bps_peer number = kOther) : number_(number) {
    if (pipe(up_) != 0 || pipe(down_) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ != 0) {
      close(std::exchange(up_[1], -1));  // so that its end is the end of what it says
      return;
    }
    try {
      before();
      End end;
      WriteText(up_[1], end.address());
      if (end.Connect(ReadText(down_[0]), kOther, number) != BPS_OK) _exit(4);
      const std::string key = ReadText(down_[0]);
      body(&end, key);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      _exit(5);
    }
    _exit(0);
  }
  explicit Child(Body body, bps_peer number = kOther) : Child([] {}, std::move(body), number) {}
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (const int fd : {up_[0], up_[1], down_[0], down_[1]}) close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) { kill(pid_, signal); }
  // `region`: what the child is given the key of.
  void Join(End* end, bps_region* region) {
    const std::string address = ReadText(up_[0]);
    ASSERT_EQ(end->Connect(address, number_), BPS_OK) << end->failure();
    WriteText(down_[1], end->address());
    WriteText(down_[1], end->Key(region, number_));
  }

 private:
  const bps_peer number_;
  int up_[2], down_[2];
  pid_t pid_;
};

// Memory of kSize bytes that others can map once they have its descriptor.
class MemoryFile {
 public:
  MemoryFile() {
    if (ftruncate(fd_, kSize) != 0 || fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK) != 0) return;
    base_ = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  }
  ~MemoryFile() {
    if (base_ != MAP_FAILED) munmap(base_, kSize);
    close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  void* base() const { return base_; }

 private:
  const int fd_ = memfd_create("byteps-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  void* base_ = MAP_FAILED;
};

std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + (i >> 9));
  return bytes;
}

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

// Memory that nobody will ever fill: whoever reads it stands still.
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

// A memory file stays its owner's when it is taken back: whoever is writing there has to come to an end first.
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

// `take_back`, on a thread that may not signal anybody, gets memory back into which there are writers without end, with
// what is in it.
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

// A writer that does not end and, as it is another user's, cannot be ended: `take_back`, on a thread that may not signal
// anybody, gets the memory back all the same, with what is in it. A third one, who has written there, too, is either lost
// or sees no file in it any more (`third_stays`).
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

TEST(ShmProcess, AWriterThatCannotBeKilledWritesIntoNobodysPagesBehindUnreg) {
  ExpectTakenOutOfReach([](End* end, bps_region* region) { end->table().unreg(end->transport(), region); }, true);
}

// The memory is still lent to others then, whose writes would be lost: they are told that they are.
TEST(ShmProcess, AWriterThatCannotBeKilledWritesIntoNobodysPagesBehindDisconnect) {
  const auto disconnect = [](End* end, bps_region* region) {
    EXPECT_EQ(end->table().disconnect(end->transport(), kOther), BPS_OK);
    EXPECT_TRUE(end->Until([&] { return end->heard[BPS_EVENT_DISCONNECTED] == 1; })) << end->log();
    EXPECT_TRUE(end->Until([&] { return end->heard[BPS_EVENT_PEER_DOWN] == 1; }, kAtOnce)) << end->log();
    end->table().unreg(end->transport(), region);
  };
  ExpectTakenOutOfReach(disconnect, false);
}

// Two such writers at once: the second must not be found safe because of the first, nor undo what was done for him.
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

TEST(ShmProcess, TwoWritersThatCannotBeKilledWriteIntoNobodysPagesBehindUnreg) {
  ExpectOutOfReachOfBoth([](End* end, bps_region* region) { end->table().unreg(end->transport(), region); });
}

TEST(ShmProcess, TwoWritersThatCannotBeKilledWriteIntoNobodysPagesBehindDisconnect) {
  ExpectOutOfReachOfBoth([](End* end, bps_region* region) {
    for (const bps_peer peer : {kOther, bps_peer{2}}) {
      EXPECT_EQ(end->table().disconnect(end->transport(), peer), BPS_OK);
    }
    EXPECT_TRUE(end->Until([&] { return end->heard[BPS_EVENT_DISCONNECTED] == 2; })) << end->log();
    end->table().unreg(end->transport(), region);
  });
}

// ---- Refusals ----

// Whatever keeps a process from mapping a memory file of the other (`hinder`): it says so, once, and copies.
void ExpectCopiesInsteadOfAMapping(const std::function<void()>& hinder) {
  Child child([&](End* end, const std::string&) {
    // Connected: what hinders us from now on concerns the memory alone.
    if (!end->Until([&] { return end->messages.size() == 1; })) _exit(7);
    const std::vector<std::byte> pattern = Pattern(kSize);
    std::vector<std::byte> copy(kSize);
    hinder();
    end->Send("ready");
    if (!end->Until([&] { return end->messages.size() == 2; })) _exit(8);
    const std::string key = end->messages[1];
    const bps_remote remote{key.data(), key.size(), 0};
    void* base = nullptr;
    const auto code = [&](auto function) {
      int32_t answer = BPS_TRANSPORT_AGAIN;
      end->Until([&] { return (answer = function()) != BPS_TRANSPORT_AGAIN; }, std::chrono::seconds(20));
      return std::to_string(answer);
    };
    const bps_transport_table& table = end->table();
    std::string text = code([&] { return table.map_remote(end->transport(), kOther, &remote, kSize, &base); });
    text += " " + code([&] { return table.begin_write(end->transport(), kOther, &remote, kSize, &base); });
    text += " " + std::to_string(table.copy_from(end->transport(), kOther, &remote, copy.data(), kSize));
    text += copy == pattern ? " equal" : " different";
    std::fill(copy.begin(), copy.end(), std::byte{0x55});
    text += " " + std::to_string(table.copy_to(end->transport(), kOther, &remote, copy.data(), kSize));
    end->Send(text + "\n" + end->log());
    end->Until([] { return false; });
  });
  End end;
  std::byte byte{};
  child.Join(&end, end.Reg(&byte, 1));
  if (::testing::Test::HasFatalFailure()) return;
  end.Send("connected");
  ASSERT_TRUE(end.Until([&] { return end.messages.size() == 1; })) << end.log();
  const MemoryFile file;
  ASSERT_NE(file.base(), MAP_FAILED);
  std::memcpy(file.base(), Pattern(kSize).data(), kSize);
  bps_region* region = nullptr;
  ASSERT_EQ(end.table().reg_shared(end.transport(), file.base(), kSize, file.fd(), &region, nullptr), BPS_OK);
  end.Send(end.Key(region));
  ASSERT_TRUE(end.Until([&] { return end.messages.size() == 2; })) << end.log();
  const std::string& said = end.messages[1];
  const std::string refused = std::to_string(BPS_UNIMPLEMENTED);
  EXPECT_EQ(said.substr(0, said.find('\n')), refused + " " + refused + " 0 equal 0");
  EXPECT_NE(said.find("cannot be mapped"), std::string::npos) << said;
  EXPECT_EQ(said.find("cannot be mapped"), said.rfind("cannot be mapped")) << said;
  const auto* bytes = static_cast<const unsigned char*>(file.base());
  EXPECT_EQ(std::count(bytes, bytes + kSize, 0x55), static_cast<ptrdiff_t>(kSize));
  end.table().unreg(end.transport(), region);
}

TEST(ShmProcess, MemoryWhoseDescriptorIsOneTooManyIsCopied) {
  ExpectCopiesInsteadOfAMapping([] {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(9);
    limit.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(10);
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these need the address space for themselves
TEST(ShmProcess, MemoryThatFindsNoRoomIsCopied) {
  ExpectCopiesInsteadOfAMapping([] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit{};
    if (pages == 0 || getrlimit(RLIMIT_AS, &limit) != 0) _exit(9);
    limit.rlim_cur = pages * static_cast<size_t>(getpagesize()) + kSize / 2;
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(10);
  });
}
#endif

void FilterSystemCalls() {
  if (!ForbidProcessMemory()) throw std::runtime_error("no seccomp filter can be set here");
}

// Without capabilities a process may not look into one that has some.
void DropCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capset, &header, data) != 0) throw std::runtime_error("capabilities cannot be dropped");
}

// The child, hindered, writes to us, reads from us and is written to; says what its log has.
void Exchange(End* end, const std::string& key) {
  const std::vector<std::byte> pattern = Pattern(kSize);
  const bps_remote remote{key.data(), key.size(), 0};
  if (end->Write(pattern.data(), kSize, key, 7) != BPS_OK) _exit(7);
  if (!end->Until([&] { return end->heard[BPS_EVENT_WRITTEN] == 1; }) || end->last.code != BPS_OK) _exit(8);
  std::vector<std::byte> copy(kSize);
  const bps_local local{nullptr, copy.data()};
  if (end->table().post_read(end->transport(), kOther, &local, kSize, &remote, 0) != BPS_OK) _exit(9);
  if (!end->Until([&] { return end->heard[BPS_EVENT_READ] == 1; })) _exit(10);
  if (copy != pattern) _exit(11);
  std::vector<std::byte> landing(kSize);
  end->Send(end->Key(end->Reg(landing.data(), kSize)));
  if (!end->Until([&] { return end->heard[BPS_EVENT_IMMEDIATE] == 1; })) _exit(12);
  if (landing != pattern) _exit(13);
  end->Send(end->log().empty() ? "silent" : end->log());
  end->Until([] { return false; });
}

void ExpectExchange(const std::function<void()>& hinder, const std::string& says) {
  Child child(hinder, Exchange);
  End end;
  std::vector<std::byte> memory(kSize);
  bps_region* region = end.Reg(memory.data(), memory.size());
  child.Join(&end, region);
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(end.Until([&] { return end.heard[BPS_EVENT_IMMEDIATE] == 1; })) << end.log();
  EXPECT_TRUE(memory == Pattern(kSize));
  ASSERT_TRUE(end.Until([&] { return end.messages.size() == 1; })) << end.log();
  ASSERT_EQ(end.Write(memory.data(), kSize, end.messages[0], 9), BPS_OK);
  ASSERT_TRUE(end.Until([&] { return end.messages.size() == 2; })) << end.log();
  const std::string& log = end.messages[1];
  EXPECT_NE(log.find(says), std::string::npos) << log;
  EXPECT_EQ(log.find(says), log.rfind(says)) << "said more than once: " << log;
  if (says == "silent") return;
  const size_t line = log.rfind('\n', log.find(says)) + 1;  // npos + 1: the first
  EXPECT_EQ(log.compare(line, 6, "INFO: "), 0) << log;
}

TEST(ShmProcess, NothingIsMissingWhereAFilterForbidsToReadProcesses) {
  ExpectExchange(FilterSystemCalls, "process_vm_readv is not allowed here");
}

TEST(ShmProcess, NothingIsMissingWithoutCapabilities) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, data), 0);
  if (data[0].permitted == 0) GTEST_SKIP() << "this process has no capabilities to drop";
  ExpectExchange(DropCapabilities, "cannot be read directly");
}

TEST(ShmProcess, AnUnhinderedProcessSaysNothing) {
  ExpectExchange([] {}, "silent");
}

// ---- Lives ----

size_t Descriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Of an end that hears of others, or waits for ever.
const std::map<std::string, std::string> kPatient = {{"BYTEPS_PEER_TIMEOUT", "0"}};

// Of few descriptors, each may be the first that there is not: of the endpoint, of the connection, of what comes over it.
// Whoever lacks it knows that it was this, and that nobody else has failed; the other one hears of the end.
TEST(ShmProcess, WhoHasNoDescriptorsLeftKnowsIt) {
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

// Whoever cannot be connected to for lack of descriptors says so to the other side: whoever of the two is to call (it is
// drawn by lot), and whether the other one knows him already or not yet.
TEST(ShmProcess, WhoIsNotConnectedForLackOfDescriptorsIsTold) {
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
    if (starved.down == BPS_OK) continue;  // it waits to be called, and nobody knows of it yet
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

// Who calls before he is known, where nobody can be let in: he is heard when he is known, and no processor is used until
// then.
TEST(ShmProcess, WhoCannotBeLetInYetDoesNotKeepItsHostAwake) {
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

TEST(ShmProcess, ManyLivesLeaveNothingBehind) {
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
TEST(ShmProcess, TheBellRingsOnceForWhoSleepsAndNotForWhoIsAwake) {
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
TEST(ShmProcess, PatienceWithAPeerBeginsWhenItIsGivenSomething) {
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

TEST(ShmProcess, WhoIsOutOfReachIsToldWhy) {
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
