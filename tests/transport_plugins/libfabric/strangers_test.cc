// Connections to a tcp endpoint's port that are not of its job: opened and closed, cut short, held open, thousands of
// them. The job does not notice, and descriptors and processor time are afterwards what they were before.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport/costs.h"
#include "tests/transport_plugins/libfabric/node.h"

namespace byteps::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPatience = 60;
constexpr bps_peer kLeft = 5, kRight = 6, kLate = 7;

// What libfabric 1.17 and 2.x put in front of a connection request: version, type, size of what follows.
std::string RequestHead(uint16_t size) {
  std::string head(32, '\0');
  head[0] = 3;
  head[2] = static_cast<char>(size >> 8);
  head[3] = static_cast<char>(size & 0xff);
  head[24] = 1;
  return head;
}

uint16_t PortOf(const Node& node) {
  const std::string log = node.log(), mark = "address 127.0.0.1:";
  const size_t at = log.find(mark);
  if (at == std::string::npos) throw std::runtime_error("no address in the log: " + log);
  return static_cast<uint16_t>(std::stoi(log.substr(at + mark.size())));
}

int Call(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// Sleeps as a job does: polls, and where nothing is to be done, waits for the descriptors. Until `done`, which is asked
// after each wake; false after `seconds`.
bool Sleep(const std::vector<Node*>& nodes, const std::function<bool()>& done, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (Clock::now() > end) return false;
    bool quiet = true;
    errno = EAGAIN;  // as whatever a job reads without blocking leaves it
    for (Node* node : nodes) quiet = node->Poll() == 0 && quiet;
    std::vector<pollfd> fds;
    for (Node* node : nodes) {
      quiet = quiet && node->Arm();
      fds.push_back({node->wait_fd(), POLLIN, 0});
    }
    if (quiet) poll(fds.data(), fds.size(), 20);
  }
  return true;
}

// The processor time that `nodes`, which have nothing to do, take in `seconds`.
double IdleCost(const std::vector<Node*>& nodes, double seconds) {
  const double before = ProcessorTime();
  Sleep(
      nodes, [] { return false; }, seconds);
  return ProcessorTime() - before;
}

// What takes part in a test: two endpoints that know each other.
struct Pair {
  Pair() { Join(left, kRight, right, kLeft); }
  std::vector<Node*> both() { return {&left, &right}; }
  // A message there and back, with what else there is to be done.
  bool Talk() {
    const size_t heard = right.messages().size(), answered = left.messages().size();
    if (left.Send(kRight, "there") != BPS_OK) return false;
    if (!Sleep(
            both(), [&] { return right.messages().size() > heard; }, kPatience))
      return false;
    if (right.Send(kLeft, "and back") != BPS_OK) return false;
    return Sleep(
        both(), [&] { return left.messages().size() > answered; }, kPatience);
  }
  Node left, right;
};

// A process that calls the ports it is given, made before there are endpoints that it would inherit.
class Stranger {
 public:
  using Body = std::function<void(const std::vector<uint16_t>& ports)>;
  explicit Stranger(const Body& body) {
    if (pipe(down_) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ != 0) return;
    uint16_t ports[2];
    if (read(down_[0], ports, sizeof ports) != sizeof ports) _exit(1);
    body({ports[0], ports[1]});
    _exit(0);
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    if (!ended_) waitpid(pid_, nullptr, 0);
    close(down_[0]);
    close(down_[1]);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void Attack(const Pair& pair) {
    const uint16_t ports[2] = {PortOf(pair.left), PortOf(pair.right)};
    ASSERT_EQ(write(down_[1], ports, sizeof ports), static_cast<ssize_t>(sizeof ports));
  }
  bool ended() {
    ended_ = ended_ || waitpid(pid_, nullptr, WNOHANG) == pid_;
    return ended_;
  }

 private:
  int down_[2];
  pid_t pid_ = -1;
  bool ended_ = false;
};

class Strangers : public ::testing::Test {
 protected:
  // An endpoint that is stuck in a read never comes back by itself.
  void SetUp() override { alarm(240); }
  void TearDown() override { alarm(0); }
};

TEST_F(Strangers, APeerThatComesAndGoesLeavesNothing) {
  Stranger stranger([](const std::vector<uint16_t>& ports) {
    for (int i = 0; i < 40; ++i) close(Call(ports[static_cast<size_t>(i) % 2]));
  });
  Pair pair;
  ASSERT_TRUE(pair.Talk());
  const double before = IdleCost(pair.both(), 1);
  const size_t descriptors = Descriptors();
  stranger.Attack(pair);
  ASSERT_TRUE(Sleep(
      pair.both(), [&] { return stranger.ended(); }, kPatience));
  EXPECT_TRUE(Sleep(
      pair.both(), [&] { return Descriptors() <= descriptors; }, 20))
      << Descriptors() << " descriptors, " << descriptors << " before";
  EXPECT_LT(IdleCost(pair.both(), 2), 2 * before + 0.2);
  EXPECT_TRUE(pair.Talk());
}

// The provider reads the rest of a request as if it were there.
TEST_F(Strangers, ARequestThatIsCutShortKeepsNoPeerWaiting) {
  Stranger stranger([](const std::vector<uint16_t>& ports) {
    for (const uint16_t port : ports) {
      for (const std::string& text : {RequestHead(40), RequestHead(40) + "abc", RequestHead(256), std::string("\3"),
                                      std::string("GET / HTTP/1.1\r\n"), std::string(10'000, 'x')}) {
        const int fd = Call(port);
        if (fd < 0 || write(fd, text.data(), text.size()) <= 0) _exit(2);
      }
    }
    pause();
  });
  Pair pair;
  ASSERT_TRUE(pair.Talk());
  const size_t descriptors = Descriptors();
  stranger.Attack(pair);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(pair.Talk());
    usleep(2000);  // how long the talk goes on beside them, not a wait for anything
  }
  EXPECT_TRUE(Sleep(
      pair.both(), [&] { return Descriptors() <= descriptors; }, 30))
      << Descriptors();
}

// Bare ones, such as begin a request and stop, and such as are held open: 10,000 of each kind in turn.
TEST_F(Strangers, TenThousandDoNotDisturbAJob) {
  constexpr size_t kCalls = 10'000, kHeld = 2'000;
  Stranger stranger([](const std::vector<uint16_t>& ports) {
    std::deque<int> held;
    for (size_t i = 0; i < kCalls; ++i) {
      const int fd = Call(ports[i % 2]);
      if (fd < 0) continue;
      const std::string text = i % 3 == 0 ? "" : i % 3 == 1 ? RequestHead(40) + "half" : std::string("hello?");
      if (!text.empty() && write(fd, text.data(), text.size()) < 0) (void)0;
      held.push_back(fd);
      if (i % 4 == 0) {
        close(fd);
        held.pop_back();
      }
      if (held.size() > kHeld) {
        close(held.front());
        held.pop_front();
      }
    }
  });
  Pair pair;
  ASSERT_TRUE(pair.Talk());
  const double idle = IdleCost(pair.both(), 1);
  const size_t descriptors = Descriptors();
  size_t most = descriptors, talks = 0;
  stranger.Attack(pair);
  double slowest = 0;
  while (!stranger.ended()) {
    const auto begin = Clock::now();
    ASSERT_TRUE(pair.Talk()) << pair.left.log() << pair.right.log();
    slowest = std::max(slowest, std::chrono::duration<double>(Clock::now() - begin).count());
    most = std::max(most, Descriptors());
    // A member that comes late is let in.
    if (++talks == 3) {
      auto late = std::make_unique<Node>();
      ASSERT_EQ(late->Connect(kRight, kLate, pair.right.address()), BPS_OK) << late->failure();
      ASSERT_EQ(pair.right.Connect(kLate, kRight, late->address()), BPS_OK) << pair.right.failure();
      ASSERT_EQ(late->Send(kRight, "late"), BPS_OK);
      const size_t heard = pair.right.messages().size();
      ASSERT_TRUE(Sleep(
          {late.get(), &pair.left, &pair.right},
          [&] { return pair.right.messages().size() > heard || pair.right.down(kLate); }, kPatience));
      EXPECT_FALSE(pair.right.down(kLate)) << pair.right.why();
      pair.right.Disconnect(kLate);
    }
  }
  EXPECT_GT(talks, 3u);
  EXPECT_FALSE(pair.left.down(kRight));
  EXPECT_FALSE(pair.right.down(kLeft));
  EXPECT_LT(most, descriptors + 300);
  EXPECT_LT(slowest, 2.0);
  EXPECT_TRUE(Sleep(
      pair.both(), [&] { return Descriptors() <= descriptors; }, 30))
      << Descriptors() << " descriptors, " << descriptors << " before";
  EXPECT_LT(IdleCost(pair.both(), 2), 2 * idle + 0.2);
  for (const Node* node : pair.both()) {
    EXPECT_LT(Occurrences(node->log(), "not of this job"), 40u);
    EXPECT_GT(Occurrences(node->log(), "not of this job"), 0u) << node->log();
  }
  std::printf("%zu messages there and back, the slowest in %.1f ms; %zu descriptors at most, %zu before\n", talks,
              slowest * 1e3, most, descriptors);
}

}  // namespace
}  // namespace byteps::testing
