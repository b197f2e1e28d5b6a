// Connections to shm's Unix sockets that are not of the job: idle ones, those of other users, thousands of them, and of
// a process whose number belongs to another one by now.

#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport/costs.h"
#include "tests/transport_plugins/shm/end.h"
#include "transport_plugins/shm/address.h"
#include "transport_plugins/shm/control_socket.h"

namespace byteps::testing {
namespace {

constexpr uid_t kNobody = 65534;

// Of an endpoint's socket. (Every user of the host can read it in /proc/net/unix.)
std::string SocketName(const End& end) {
  shm::Address address;
  std::string reason;
  if (!shm::Address::Parse(end.address().data(), end.address().size(), &address, &reason)) std::abort();
  std::ifstream table("/proc/net/unix");
  const std::string all((std::istreambuf_iterator<char>(table)), std::istreambuf_iterator<char>());
  EXPECT_NE(all.find("@" + address.SocketName().substr(1)), std::string::npos);
  return address.SocketName();
}

int Call(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  close(fd);
  return -1;
}

// A process that does `body` once it is told to, as another user if asked; it says when it has begun to hold what it
// has.
class Stranger {
 public:
  using Body = std::function<void(const std::vector<std::string>& names)>;
  Stranger(bool other_user, const Body& body) {
    if (pipe(down_) != 0 || pipe(up_) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ != 0) {
      close(std::exchange(up_[1], -1));  // so that its end is seen
      usable_ = Hear() == 'u';
      return;
    }
    if (other_user && setuid(kNobody) != 0) _exit(2);
    if (write(up_[1], "u", 1) != 1) _exit(3);
    std::vector<std::string> names;
    for (char size = 1; size != 0;) {
      if (read(down_[0], &size, 1) != 1) _exit(1);
      std::string name(static_cast<size_t>(size), '\0');
      if (read(down_[0], name.data(), name.size()) != size) _exit(1);
      if (size != 0) names.push_back(name);
    }
    body(names);
    if (write(up_[1], "h", 1) != 1) _exit(3);
    pause();
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (const int fd : {down_[0], down_[1], up_[0], up_[1]}) close(fd);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void Begin(const std::vector<const End*>& ends) {
    std::string words;
    for (const End* end : ends) {
      const std::string name = SocketName(*end);
      words += static_cast<char>(name.size()) + name;
    }
    words += '\0';
    if (write(down_[1], words.data(), words.size()) != static_cast<ssize_t>(words.size()))
      throw std::runtime_error("write");
  }
  // False: this process may not make one of another user.
  bool usable() const { return usable_; }
  bool held() {
    pollfd entry{up_[0], POLLIN, 0};
    if (held_ || poll(&entry, 1, 0) != 1) return held_;
    if (Hear() != 'h') throw std::runtime_error("the stranger has ended");
    return held_ = true;
  }

 private:
  char Hear() {
    char word = 0;
    return read(up_[0], &word, 1) == 1 ? word : '\0';
  }

  int down_[2], up_[2];
  pid_t pid_ = -1;
  bool usable_ = false, held_ = false;
};

void HoldIdle(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (size_t i = 0; i < 300; ++i) Call(name);
  }
}

class ShmStrangers : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const Stranger trial(GetParam(), [](const std::vector<std::string>&) {});
    if (!trial.usable()) GTEST_SKIP() << "this process cannot make one of another user";
  }
};
INSTANTIATE_TEST_SUITE_P(Users, ShmStrangers, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "Another" : "TheSame"; });

// Several times, so that each side is the one that calls; and the acquaintance begins on one side only, so that a peer
// that calls is not known yet.
TEST_P(ShmStrangers, IdleOnesKeepNoPeerOut) {
  for (int i = 0; i < 6; ++i) {
    Stranger stranger(GetParam(), HoldIdle);
    End early, late;
    stranger.Begin({&early, &late});
    ASSERT_TRUE(early.Until([&] { return late.Poll(), stranger.held(); }));
    ASSERT_EQ(early.Connect(late.address()), BPS_OK);
    for (int round = 0; round < 200; ++round) early.Poll(), late.Poll();
    ASSERT_EQ(late.Connect(early.address()), BPS_OK);
    ASSERT_EQ(early.Send("hello"), BPS_OK) << early.log();
    ASSERT_TRUE(late.Until([&] { return early.Poll(), !late.messages.empty() || late.down || early.down; },
                           std::chrono::seconds(20)));
    EXPECT_FALSE(late.messages.empty()) << early.why << late.why << early.log() << late.log();
  }
}

TEST_P(ShmStrangers, IdleOnesAreShownOutAndLeaveNothing) {
  Stranger stranger(GetParam(), HoldIdle);
  End end;
  const size_t descriptors = Descriptors();
  stranger.Begin({&end});
  size_t most = descriptors;
  ASSERT_TRUE(end.Until([&] {
    most = std::max(most, Descriptors());
    return stranger.held() && Descriptors() > descriptors;
  }));
  // Behind the last one that has a place, the oldest goes.
  const auto whole = Clock::now() + std::chrono::seconds(1);
  ASSERT_TRUE(end.Until([&] {
    most = std::max(most, Descriptors());
    return Clock::now() > whole;
  }));
  const size_t places = GetParam() ? 16 : 256;
  EXPECT_LE(most, descriptors + places + 4);
  EXPECT_NE(end.log().find("when its place was needed"), std::string::npos) << end.log();
  EXPECT_TRUE(end.Until([&] { return Descriptors() <= descriptors; }, std::chrono::seconds(30))) << Descriptors();
  EXPECT_LE(Occurrences(end.log(), "not of this job"), 15u);
  EXPECT_GE(Occurrences(end.log(), "not of this job"), 10u);
  EXPECT_NE(end.log().find(GetParam() ? "of user 65534" : "of user " + std::to_string(geteuid())), std::string::npos)
      << end.log();
}

TEST_P(ShmStrangers, TenThousandAreAFewLinesAndNoMore) {
  Stranger stranger(GetParam(), [](const std::vector<std::string>& names) {
    const std::string junk(300, 'x');
    std::vector<int> held;
    for (size_t i = 0; i < 10'000; ++i) {
      const int fd = Call(names[i % names.size()]);
      if (fd < 0) continue;
      if (i % 3 != 0 && send(fd, junk.data(), i % 3 == 1 ? junk.size() : 64, MSG_NOSIGNAL) < 0) (void)0;
      held.push_back(fd);
      if (held.size() == 500) {
        for (const int each : held) close(each);
        held.clear();
      }
    }
  });
  End left, right;
  ASSERT_EQ(left.Connect(right.address()), BPS_OK);
  ASSERT_EQ(right.Connect(left.address()), BPS_OK);
  ASSERT_EQ(left.Send("first"), BPS_OK);
  ASSERT_TRUE(right.Until([&] { return left.Poll(), !right.messages.empty(); }));
  const size_t descriptors = Descriptors();
  stranger.Begin({&left, &right});
  size_t talks = 0, most = 0;
  while (!stranger.held()) {
    const size_t heard = right.messages.size();
    ASSERT_EQ(left.Send("on"), BPS_OK);
    ASSERT_TRUE(right.Until([&] { return left.Poll(), right.messages.size() > heard; }, std::chrono::seconds(10)))
        << left.log() << right.log();
    ++talks;
    most = std::max(most, Descriptors());
  }
  EXPECT_LT(most, descriptors + 700);
  EXPECT_EQ(left.down, BPS_OK) << left.why;
  EXPECT_EQ(right.down, BPS_OK) << right.why;
  EXPECT_TRUE(right.Until([&] { return left.Poll(), Descriptors() <= descriptors; }, std::chrono::seconds(30)))
      << Descriptors() << " descriptors, " << descriptors << " before";
  for (const End* end : {&left, &right}) EXPECT_LT(Occurrences(end->log(), "not of this job"), 30u) << end->log();
  std::printf("%zu messages meanwhile; %zu descriptors at most, %zu before\n", talks, most, descriptors);
}

// The connection outlives the process that has made it, and its number is given to another one.
TEST(ShmCaller, WhoseNumberIsInUseAgainIsNotTakenForAnother) {
  std::string reason;
  const std::string name = std::string(1, '\0') + "byteps-test-" + std::to_string(getpid());
  const shm::UniqueFd listener = shm::ListenAt(name, &reason);
  ASSERT_TRUE(listener) << reason;
  int up[2], keep[2];
  ASSERT_EQ(pipe(up), 0);
  ASSERT_EQ(pipe(keep), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const int fd = Call(name);
    const pid_t heir = fork();
    if (heir == 0) {  // holds the connection
      close(keep[1]);
      char c;
      _exit(static_cast<int>(read(keep[0], &c, 1)));
    }
    _exit(fd < 0 || write(up[1], "c", 1) != 1);
  }
  char c;
  ASSERT_EQ(read(up[0], &c, 1), 1);
  const shm::UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(socket);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  // An innocent process with that number.
  clone_args args{};
  args.exit_signal = SIGCHLD;
  pid_t wanted = pid;
  args.set_tid = reinterpret_cast<uint64_t>(&wanted);
  args.set_tid_size = 1;
  const pid_t innocent = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof args));
  if (innocent == 0) {
    pause();
    _exit(0);
  }
  if (innocent < 0) {
    close(keep[1]);
    GTEST_SKIP() << "a process cannot be given a number here: " << std::strerror(errno);
  }
  ASSERT_EQ(innocent, pid);
  const shm::Caller caller = shm::CallerOf(socket.get());
  EXPECT_EQ(caller.pid, pid);
  bool ended = false;
  const shm::UniqueFd process = shm::OpenCaller(socket.get(), caller, &ended);
  if (process) {
    int option = -1;
    socklen_t size = sizeof option;
    const bool known = getsockopt(socket.get(), SOL_SOCKET, 77, &option, &size) == 0 || errno != ENOPROTOOPT;
    if (option >= 0) close(option);
    pollfd entry{process.get(), POLLIN, 0};
    // It names the process that has ended, or (before Linux 6.5) cannot be had.
    EXPECT_TRUE(!known || poll(&entry, 1, 0) == 1) << "the descriptor is that of an innocent process";
  } else {
    EXPECT_TRUE(ended);
  }
  kill(innocent, SIGKILL);
  waitpid(innocent, nullptr, 0);
  for (const int fd : {up[0], up[1], keep[0], keep[1]}) close(fd);
}

}  // namespace
}  // namespace byteps::testing
