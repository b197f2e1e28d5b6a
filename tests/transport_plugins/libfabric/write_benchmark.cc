// write_benchmark - writes of 1 MiB into a window of four slots, next to a plain TCP stream in the same run.
//
//     bazel run -c opt //tests/transport_plugins/libfabric:write_benchmark [-- <slot KiB> <slots> <seconds> <rounds>
//     <lanes>]
//
// Two processes on the loopback interface. A slot is written again when the receiver, which has seen its immediate,
// says so in a message, as the core does. Plain TCP: send() of the same pieces, recv() into the same slots; no credit.
// Both take turns; the ratio is that of the medians.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/transport_plugins/libfabric/node.h"

namespace byteps::testing {
namespace {

struct Shape {
  size_t slot = size_t{1} << 20;
  uint32_t slots = 4;
  double seconds = 1;
  int rounds = 5;
  int lanes = 1;
  NodeOptions Options() const { return {.config = {{"BYTEPS_TCP_LANES", std::to_string(lanes)}}}; }
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Polls; sleeps until something happens when nothing has for a while, as the core does.
class Waiter {
 public:
  explicit Waiter(Node& node) : node_(node) {}
  void Poll() {
    if (node_.Poll() != 0) {
      idle_since_ = 0;
      return;
    }
    const double now = Now();
    if (idle_since_ == 0) idle_since_ = now;
    if (now - idle_since_ < 20e-6 || !node_.Arm()) return;
    pollfd fd{node_.wait_fd(), POLLIN, 0};
    poll(&fd, 1, 10);
  }

 private:
  Node& node_;
  double idle_since_ = 0;
};

void Check(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

void SendText(int fd, const std::string& text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  Check(write(fd, &size, 4) == 4 && write(fd, text.data(), size) == static_cast<ssize_t>(size), "pipe");
}

std::string ReceiveText(int fd) {
  uint32_t size = 0;
  Check(read(fd, &size, 4) == 4, "pipe");
  std::string text(size, '\0');
  Check(read(fd, text.data(), size) == static_cast<ssize_t>(size), "pipe");
  return text;
}

// The receiver of both, in a child process.
class Receiver {
 public:
  explicit Receiver(const Shape& shape) : shape_(shape), memory_(shape.slot * shape.slots, 1) {
    Check(pipe(up_) == 0 && pipe(down_) == 0, "pipe");
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    Check(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener_, 1) == 0, "listen");
    Check(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
    port_ = address.sin_port;
    pid_ = fork();
    if (pid_ == 0) {
      try {
        Run();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "receiver: %s\n", error.what());
      }
      _exit(0);
    }
  }
  ~Receiver() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // Returns MB/s.
  double Stream() {
    SendText(down_[1], "stream");
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = port_;
    Check(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
    const double start = Now();
    size_t sent = 0;
    for (uint32_t i = 0; Now() - start < shape_.seconds; ++i) {
      const char* at = memory_.data() + i % shape_.slots * shape_.slot;
      for (size_t done = 0; done < shape_.slot;) {
        const ssize_t n = send(fd, at + done, shape_.slot - done, MSG_NOSIGNAL);
        Check(n > 0, "send");
        done += static_cast<size_t>(n);
      }
      sent += shape_.slot;
    }
    shutdown(fd, SHUT_WR);
    char byte;
    Check(recv(fd, &byte, 1, 0) == 1, "recv");  // it has everything
    const double rate = static_cast<double>(sent) / (Now() - start) / 1e6;
    close(fd);
    return rate;
  }

  double Writes() {
    SendText(down_[1], "writes");
    Node node(shape_.Options());
    const std::string address = ReceiveText(up_[0]);
    SendText(down_[1], node.address());
    Check(node.Connect(2, 1, address) == BPS_OK, "connect");
    const std::string key = ReceiveText(up_[0]);
    Check(node.Until([&] { return !node.messages().empty(); }, 10), "no hello");
    node.Forget();
    bps_region* region = node.Reg(memory_.data(), memory_.size());
    std::vector<uint32_t> free;
    for (uint32_t i = 0; i < shape_.slots; ++i) free.push_back(i);
    size_t written = 0, landed = 0;
    const double start = Now();
    bool stopping = false;
    Waiter waiter(node);
    while (!stopping || landed < written) {
      stopping = stopping || Now() - start >= shape_.seconds;
      while (!stopping && !free.empty()) {
        const uint32_t slot = free.back();
        if (node.Write(2, region, memory_.data() + slot * shape_.slot, shape_.slot, key, slot * shape_.slot, slot) !=
            BPS_OK) {
          break;
        }
        free.pop_back();
        ++written;
      }
      waiter.Poll();
      Check(!node.down(2), "the receiver is gone");
      for (const std::string& message : node.messages()) {
        uint32_t slot = 0;
        std::memcpy(&slot, message.data(), sizeof slot);
        free.push_back(slot);
        ++landed;
      }
      node.Forget();
    }
    const double rate = static_cast<double>(landed * shape_.slot) / (Now() - start) / 1e6;
    node.Unreg(region);
    return rate;
  }

 private:
  void Run() {
    while (true) {
      const std::string what = ReceiveText(down_[0]);
      if (what == "stream") {
        const int fd = accept(listener_, nullptr, nullptr);
        Check(fd >= 0, "accept");
        size_t at = 0;
        while (true) {
          const ssize_t n = recv(fd, memory_.data() + at, std::min(shape_.slot, memory_.size() - at), 0);
          Check(n >= 0, "recv");
          if (n == 0) break;
          at = (at + static_cast<size_t>(n)) % memory_.size();
        }
        Check(send(fd, "x", 1, 0) == 1, "send");
        close(fd);
        continue;
      }
      Node node(shape_.Options());
      SendText(up_[1], node.address());
      Check(node.Connect(1, 2, ReceiveText(down_[0])) == BPS_OK, "connect");
      bps_region* region = node.Reg(memory_.data(), memory_.size());
      SendText(up_[1], node.Key(region, 1));
      Check(node.Send(1, "hello") == BPS_OK, "hello");
      Waiter waiter(node);
      while (!node.down(1)) {
        waiter.Poll();
        for (const bps_event& event : node.events()) {
          if (event.type != BPS_EVENT_IMMEDIATE) continue;
          const std::string credit(reinterpret_cast<const char*>(&event.immediate), sizeof event.immediate);
          while (node.Send(1, credit) == BPS_TRANSPORT_AGAIN) node.Poll();
        }
        if (!node.down(1)) node.Forget();
      }
      node.Unreg(region);
    }
  }

  const Shape shape_;
  std::vector<char> memory_;
  int up_[2], down_[2], listener_;
  uint16_t port_ = 0;
  pid_t pid_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  Shape shape;
  if (argc > 1) shape.slot = static_cast<size_t>(std::max(1, std::atoi(argv[1]))) * 1024;
  if (argc > 2) shape.slots = static_cast<uint32_t>(std::max(1, std::atoi(argv[2])));
  if (argc > 3) shape.seconds = std::max(0.05, std::atof(argv[3]));
  if (argc > 4) shape.rounds = std::max(1, std::atoi(argv[4]));
  if (argc > 5) shape.lanes = std::max(1, std::atoi(argv[5]));
  Receiver receiver(shape);
  std::vector<double> stream, writes;
  for (int round = 0; round < shape.rounds; ++round) {
    stream.push_back(receiver.Stream());
    writes.push_back(receiver.Writes());
    std::printf("round %d: plain TCP %.0f MB/s, writes %.0f MB/s\n", round, stream.back(), writes.back());
    std::fflush(stdout);
  }
  std::printf("%zu KiB x %u slots: plain TCP %.0f MB/s, writes %.0f MB/s, ratio %.2f (medians)\n", shape.slot / 1024,
              shape.slots, Median(stream), Median(writes), Median(writes) / Median(stream));
  return 0;
}

}  // namespace
}  // namespace byteps::testing

int main(int argc, char** argv) {
  try {
    return byteps::testing::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_benchmark: %s\n", error.what());
    return 1;
  }
}
