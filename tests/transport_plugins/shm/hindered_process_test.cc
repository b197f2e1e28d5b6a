// Endpoints in processes from which the system withholds something: mappings, system calls, capabilities.

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/child.h"
#include "tests/transport_plugins/shm/end.h"
#include "tests/transport_plugins/shm/process_memory_filter.h"

namespace byteps::testing {
namespace {

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

TEST(ShmHinderedProcess, MemoryWhoseDescriptorIsOneTooManyIsCopied) {
  ExpectCopiesInsteadOfAMapping([] {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(9);
    limit.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(10);
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these need the address space for themselves
TEST(ShmHinderedProcess, MemoryThatFindsNoRoomIsCopied) {
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

TEST(ShmHinderedProcess, NothingIsMissingWhereAFilterForbidsToReadProcesses) {
  ExpectExchange(FilterSystemCalls, "process_vm_readv is not allowed here");
}

TEST(ShmHinderedProcess, NothingIsMissingWithoutCapabilities) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, data), 0);
  if (data[0].permitted == 0) GTEST_SKIP() << "this process has no capabilities to drop";
  ExpectExchange(DropCapabilities, "cannot be read directly");
}

TEST(ShmHinderedProcess, AnUnhinderedProcessSaysNothing) {
  ExpectExchange([] {}, "silent");
}

}  // namespace
}  // namespace byteps::testing
