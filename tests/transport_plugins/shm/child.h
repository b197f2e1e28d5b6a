// child.h - an endpoint in a process of its own, for the tests of what happens between two processes.
//
//     Child child([] { ... }, Body);          // before this process opens its own endpoint
//     End end;
//     child.Join(&end, region);                // `Body` runs there with the key of `region`
//
// Threads: one.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_CHILD_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_CHILD_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/end.h"

namespace byteps::testing {

inline constexpr size_t kSize = size_t{8} << 20;
inline constexpr std::chrono::seconds kAtOnce(2);

inline void WriteText(int fd, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  if (write(fd, &size, 4) != 4 || write(fd, text.data(), size) != static_cast<ssize_t>(size)) _exit(3);
}

inline std::string ReadText(int fd) {
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

inline std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + (i >> 9));
  return bytes;
}

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_CHILD_H_
