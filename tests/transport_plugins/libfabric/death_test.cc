// Peers in processes of their own that are killed, stopped, or were never there.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport_plugins/libfabric/node.h"

namespace byteps::testing {
namespace {

using Seconds = std::chrono::duration<double>;

// "At once", on a loaded machine too: without the event it takes the patience of 30 s, or for ever.
constexpr double kAtOnce = 8;

double Now() { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A child process, made before this process opens anything; it calls us 1 and we call it 2.
class Child {
 public:
  Child() {
    if (pipe(up_) != 0 || pipe(down_) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) Run();
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (int fd : {up_[0], up_[1], down_[0], down_[1]}) close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Signal(int signal) { kill(pid_, signal); }

  void Join(Node& node) {
    const std::string address = Receive(up_[0]);
    key_ = Receive(up_[0]);
    Send(down_[1], node.address());
    ASSERT_EQ(node.Connect(2, 1, address), BPS_OK) << node.failure();
    ASSERT_EQ(node.Send(2, "hello"), BPS_OK);
    ASSERT_TRUE(node.Until([&] { return node.messages().size() == 1 && node.Count(BPS_EVENT_SENT) == 1; }, 60));
    node.Forget();
    key_ = Receive(up_[0]);
  }
  // Of 16 MiB in the child.
  const std::string& key() const { return key_; }

 private:
  static void Send(int fd, const std::string& text) {
    const uint32_t size = static_cast<uint32_t>(text.size());
    if (write(fd, &size, 4) != 4 || write(fd, text.data(), size) != static_cast<ssize_t>(size)) _exit(3);
  }
  static std::string Receive(int fd) {
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
  // Answers each message; never returns.
  [[noreturn]] void Run() {
    try {
      Node node;
      Send(up_[1], node.address());
      Send(up_[1], "");
      if (node.Connect(1, 2, Receive(down_[0])) != BPS_OK) _exit(4);
      std::vector<char> memory(16 << 20);
      Send(up_[1], node.Key(node.Reg(memory.data(), memory.size()), 1));
      size_t answered = 0;
      const double end = Now() + 60;
      while (Now() < end) {
        node.Poll();
        if (answered < node.messages().size() && node.Send(1, "answer") == BPS_OK) ++answered;
      }
    } catch (...) {
    }
    _exit(5);
  }

  int up_[2], down_[2];
  pid_t pid_;
  std::string key_;
};

// Nothing of peer 2 is out, and it was said down once, last.
void ExpectEndedInOrder(const Node& node, size_t sent, size_t written) {
  EXPECT_EQ(node.Count(BPS_EVENT_SENT), sent);
  EXPECT_EQ(node.Count(BPS_EVENT_WRITTEN), written);
  EXPECT_EQ(node.Count(BPS_EVENT_PEER_DOWN, 2), 1u);
  EXPECT_NE(node.why(), "");
  ASSERT_FALSE(node.events().empty());
  EXPECT_EQ(node.events().back().type, static_cast<uint32_t>(BPS_EVENT_PEER_DOWN));
}

TEST(Death, AKilledPeerIsHeardOfAtOnceEvenWhenNothingIsSent) {
  Child child;
  Node node;
  child.Join(node);
  if (HasFatalFailure()) return;
  child.Signal(SIGKILL);
  const double killed = Now();
  ASSERT_TRUE(node.Until([&] { return node.down(2); }, 60));
  EXPECT_LT(Now() - killed, kAtOnce);
  node.Until([] { return false; }, 0.1);
  ExpectEndedInOrder(node, 0, 0);
  EXPECT_EQ(node.Send(2, "anybody there?"), BPS_UNAVAILABLE);
}

TEST(Death, AKilledPeerWakesASleeper) {
  Child child;
  Node node;
  child.Join(node);
  if (HasFatalFailure()) return;
  while (!node.Arm()) node.Poll();
  child.Signal(SIGKILL);
  const double killed = Now();
  while (!node.down(2) && Now() < killed + 60) {
    if (node.Arm()) {
      pollfd fd{node.wait_fd(), POLLIN, 0};
      poll(&fd, 1, 10'000);
    }
    while (node.Poll() != 0) {
    }
  }
  EXPECT_LT(Now() - killed, kAtOnce);
  ExpectEndedInOrder(node, 0, 0);
}

TEST(Death, APeerKilledInTheMiddleOfMuchTraffic) {
  Child child;
  Node node;
  child.Join(node);
  if (HasFatalFailure()) return;
  std::vector<char> source(16 << 20);
  bps_region* region = node.Reg(source.data(), source.size());
  size_t written = 0, sent = 0;
  const double start = Now();
  double killed = 0;
  while (!node.down(2) && Now() < start + 60) {
    written += node.Write(2, region, source.data(), source.size(), child.key(), 0, 7) == BPS_OK;
    sent += node.Send(2, "and a message") == BPS_OK;
    node.Poll();
    if (killed == 0 && Now() > start + 0.2) {
      killed = Now();
      child.Signal(SIGKILL);
    }
  }
  EXPECT_LT(Now() - killed, kAtOnce);
  node.Until([] { return false; }, 0.1);
  ExpectEndedInOrder(node, sent, written);
  node.Unreg(region);
}

TEST(Death, AStoppedPeerIsDownAfterThePatienceWithIt) {
  Child child;
  Node node({.config = {{"BYTEPS_PEER_TIMEOUT", "1"}}});
  child.Join(node);
  if (HasFatalFailure()) return;
  child.Signal(SIGSTOP);
  std::vector<char> source(16 << 20);
  bps_region* region = node.Reg(source.data(), source.size());
  const double stopped = Now();
  ASSERT_EQ(node.Write(2, region, source.data(), source.size(), child.key(), 0, 7), BPS_OK);
  // Asleep: the descriptor wakes us when the patience is over.
  while (!node.down(2) && Now() < stopped + 60) {
    if (node.Arm()) {
      pollfd fd{node.wait_fd(), POLLIN, 0};
      poll(&fd, 1, 5'000);
    }
    while (node.Poll() != 0) {
    }
  }
  EXPECT_GT(Now() - stopped, 0.9);
  EXPECT_LT(Now() - stopped, 1 + kAtOnce);
  ExpectEndedInOrder(node, 0, 1);
  EXPECT_NE(node.why().find("BYTEPS_PEER_TIMEOUT"), std::string::npos) << node.why();
  EXPECT_EQ(node.events()[0].code, BPS_UNAVAILABLE);
  node.Unreg(region);
}

// No peer listens there any more. Which of the two would have called depends on random numbers: the caller hears at
// once, who waits for a call has its patience.
TEST(Death, AnAddressOfTheDead) {
  int at_once = 0;
  for (int round = 0; round < 12 || (at_once == 0 && round < 60); ++round) {
    Node node({.config = {{"BYTEPS_PEER_TIMEOUT", "1"}}});
    std::string address;
    {
      Node dead;
      address = dead.address();
    }
    const double start = Now();
    ASSERT_EQ(node.Connect(2, 1, address), BPS_OK);
    const int32_t posted = node.Send(2, "hello", 77);
    ASSERT_TRUE(node.Until([&] { return node.down(2); }, 60));
    at_once += Now() - start < 0.8;
    EXPECT_LT(Now() - start, 1 + kAtOnce);
    ExpectEndedInOrder(node, posted == BPS_OK, 0);
  }
  EXPECT_GT(at_once, 0);
}

}  // namespace
}  // namespace byteps::testing
