// How two DatagramTransports find each other: one calls, the other speaks when it is spoken to, and no greeting is lost
// for good (lossy_wire.h).

#include <rdma/fi_errno.h>

#include <chrono>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/libfabric/lossy_wire.h"
#include "transport_plugins/common/host.h"
#include "transport_plugins/libfabric/datagram_endpoint.h"
#include "transport_plugins/libfabric/datagram_transport.h"
#include "transport_plugins/libfabric/provider_table.h"

namespace byteps::fabric {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{60};
constexpr bps_peer kPeer = 7;  // as each calls the other

// What the transport is configured with, and what it logs.
struct Surroundings {
  const char* peer_timeout = "60";
  std::string log;
};

void Log(void* log, int32_t, const char*, int32_t, const char* message) {
  static_cast<Surroundings*>(log)->log += std::string(message) + "\n";
}
int32_t Fail(bps_failure*, int32_t code, const char*) { return code; }
const char* Config(const void* config, const char* name) {
  if (std::string(name) != "BYTEPS_PEER_TIMEOUT") return nullptr;
  return static_cast<const Surroundings*>(config)->peer_timeout;
}
constexpr bps_plugin_host kHost = {sizeof(bps_plugin_host), Log, Fail, Config};

// A transport whose first packets are lost.
class Side {
 public:
  Side(uint32_t losses, int error, const char* peer_timeout = "60") : surroundings_{peer_timeout, ""} {
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    args.local_host = "127.0.0.1";
    const transports::Host host(&kHost, &surroundings_, &surroundings_);
    std::string reason;
    auto endpoint = DatagramEndpoint::Open(*FindProvider("datagrams"), host, args, &reason);
    if (endpoint == nullptr) throw std::runtime_error(reason);
    auto wire = std::make_unique<LossyWire>(*endpoint, losses, error);
    wire_ = wire.get();
    transport_ = std::make_unique<DatagramTransport>(host, std::move(endpoint), std::move(wire), 42);
  }

  const LossyWire& wire() const { return *wire_; }
  const std::string& log() const { return surroundings_.log; }
  const std::vector<std::string>& messages() const { return messages_; }
  int32_t down() const { return down_; }
  int32_t sent() const { return sent_; }

  void Connect(const Side& other) {
    std::string address(BPS_TRANSPORT_MAX_ADDRESS, 0), reason;
    size_t size = address.size();
    other.transport_->WriteAddress(address.data(), &size);
    bps_connect_args args{};
    args.struct_size = sizeof args;
    args.peer = args.local_id = kPeer;
    args.address = address.data();
    args.address_size = size;
    ASSERT_EQ(transport_->Connect(args, &reason), BPS_OK) << reason;
  }
  void Send(const std::string& text) { ASSERT_EQ(transport_->PostSend(kPeer, text.data(), text.size(), 1), BPS_OK); }
  void Poll() {
    bps_event events[8];
    const size_t count = transport_->Poll(events, std::size(events));
    for (size_t i = 0; i < count; ++i) {
      const bps_event& event = events[i];
      if (event.type == BPS_EVENT_SENT) sent_ = event.code;
      if (event.type == BPS_EVENT_PEER_DOWN) down_ = event.code;
      if (event.type != BPS_EVENT_MESSAGE) continue;
      messages_.emplace_back(static_cast<const char*>(event.data), event.size);
      transport_->Release(event.lease);
    }
  }

 private:
  Surroundings surroundings_;
  LossyWire* wire_ = nullptr;  // of transport_
  std::unique_ptr<DatagramTransport> transport_;
  std::vector<std::string> messages_;
  int32_t down_ = BPS_OK, sent_ = -1;
};

// Polls both until done(), or fails with what both have logged.
template <typename Done>
void Until(Side& a, Side& b, const Done& done) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!done()) {
    a.Poll();
    b.Poll();
    ASSERT_LT(Clock::now(), deadline) << "a:\n" << a.log() << "b:\n" << b.log();
  }
}

void ExpectATalk(Side& a, Side& b) {
  a.Send("from a");
  b.Send("from b");
  Until(a, b, [&] { return !a.messages().empty() && !b.messages().empty() && a.sent() >= 0 && b.sent() >= 0; });
  if (::testing::Test::HasFatalFailure()) return;
  EXPECT_EQ(a.messages(), std::vector<std::string>{"from b"});
  EXPECT_EQ(b.messages(), std::vector<std::string>{"from a"});
  EXPECT_EQ(a.sent(), BPS_OK);
  EXPECT_EQ(b.sent(), BPS_OK);
  EXPECT_EQ(a.down(), BPS_OK) << a.log();
  EXPECT_EQ(b.down(), BPS_OK) << b.log();
}

TEST(Greeting, OneSideCallsAndTheOtherSpeaksWhenItIsSpokenTo) {
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    Side a(0, 0), b(0, 0);
    a.Connect(b);
    b.Connect(a);
    EXPECT_NE(a.wire().asked() == 0, b.wire().asked() == 0) << a.wire().asked() << ", " << b.wire().asked();
    const bool a_calls = a.wire().asked() != 0;
    ExpectATalk(a, b);
    EXPECT_EQ((a_calls ? b : a).wire().asked_unheard(), 0u);
  }
}

TEST(Greeting, WhatIsLostIsSaidAgain) {
  for (const int error : {0, FI_ENOTCONN}) {
    for (const auto& [of_a, of_b] : {std::pair{1u, 0u}, {0u, 1u}, {2u, 2u}}) {
      SCOPED_TRACE("error " + std::to_string(error) + ", losses " + std::to_string(of_a) + ", " + std::to_string(of_b));
      Side a(of_a, error), b(of_b, error);
      a.Connect(b);
      b.Connect(a);
      // Greetings alone are repeated: a message goes when they are through.
      Until(a, b, [&] { return a.wire().lost() == of_a && b.wire().lost() == of_b; });
      if (HasFatalFailure()) return;
      ExpectATalk(a, b);
    }
  }
}

// Also where no peer has anything to say: a peer that does not know that it was heard is told so.
TEST(Greeting, SilenceFollows) {
  for (const uint32_t losses : {0u, 2u}) {
    SCOPED_TRACE(losses);
    Side a(losses, 0), b(losses, 0);
    a.Connect(b);
    b.Connect(a);
    uint32_t asked = 0;
    Clock::time_point last = Clock::now();
    Until(a, b, [&] {
      const uint32_t now_asked = a.wire().asked() + b.wire().asked();
      if (now_asked != asked) last = Clock::now();
      asked = now_asked;
      return Clock::now() - last > std::chrono::seconds(1);
    });
    if (HasFatalFailure()) return;
    ExpectATalk(a, b);
  }
}

TEST(Greeting, WhoseGreetingsAllFailIsDownInTimeAndSaysWhy) {
  Side a(1'000'000, FI_ENOTCONN, "0.3"), b(1'000'000, FI_ENOTCONN, "0.3");
  a.Connect(b);
  b.Connect(a);
  a.Send("from a");
  b.Send("from b");
  Until(a, b, [&] { return a.down() != BPS_OK && b.down() != BPS_OK; });
  EXPECT_EQ(a.down(), BPS_UNAVAILABLE);
  EXPECT_EQ(b.down(), BPS_UNAVAILABLE);
  EXPECT_EQ(a.sent(), BPS_UNAVAILABLE);
  EXPECT_EQ(b.sent(), BPS_UNAVAILABLE);
  EXPECT_NE((a.log() + b.log()).find("lost on purpose"), std::string::npos) << a.log() << b.log();
  EXPECT_NE((a.log() + b.log()).find("its greeting has not come"), std::string::npos) << a.log() << b.log();
}

}  // namespace
}  // namespace byteps::fabric
