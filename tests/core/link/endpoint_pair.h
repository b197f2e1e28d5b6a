// endpoint_pair.h - endpoints on nodes of the simulated fabric, for the tests of links.
//
//     auto a = Make(1), b = Make(2);
//     ASSERT_TRUE(Connect(a.get(), b.get()));
//     a->endpoint->Send(...);
//     EXPECT_TRUE(Run({a.get(), b.get()}, [&] { return b->rounds.size() == 1; }));
//
// Threads: one.
#ifndef BYTEPS_TESTS_CORE_LINK_ENDPOINT_PAIR_H_
#define BYTEPS_TESTS_CORE_LINK_ENDPOINT_PAIR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/link/endpoint.h"
#include "core/wire/landing_table.h"
#include "core/wire/message.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

inline constexpr uint64_t kSession = 42;

// One side: an endpoint on a node of the fabric that writes down what its handler hears.
class Side : public EndpointHandler {
 public:
  Side(sim::SimFabric* fabric, const std::string& node, EndpointOptions options, uint32_t member,
       const sim::EndpointOptions& knobs)
      : Side(Opened(fabric->Open(node, knobs)), std::move(options), member) {}
  Side(Transport transport, EndpointOptions options, uint32_t member) : member_(member) {
    address = *transport.Address();
    endpoint = std::make_unique<Endpoint>(std::move(transport), std::move(options), this, &log);
  }

  absl::Status Add(Time now, const Side& other, const std::string& nonce = "nonce") {
    PeerSpec spec;
    spec.session = kSession;
    spec.epoch = 1;
    spec.session_nonce = nonce;
    spec.own_member = member_;
    spec.member = other.member_;
    spec.address = other.address;
    spec.description = "member " + std::to_string(other.member_);
    spec.id = other.member_;
    spec.local_id = member_;
    return endpoint->AddPeer(now, spec);
  }

  void OnReady(PeerId peer) override { ready.push_back(peer); }
  void OnRecord(PeerId, wire::RecordType, std::span<const std::byte> body) override {
    wire::RoundBody round;
    ASSERT_TRUE(ReadStruct(body, &round));
    rounds.push_back(round.round);
    if (on_record) on_record();
  }
  void OnLanded(uint32_t immediate) override { landed.push_back(immediate); }
  void OnWritten(PeerId peer, uint64_t user, int32_t code) override {
    EXPECT_FALSE(written.contains(user)) << "ended twice";
    EXPECT_FALSE(std::count(removed.begin(), removed.end(), peer)) << "behind the fence";
    written[user] = code;
  }
  void OnRoom(PeerId) override { ++room; }
  void OnPeerDown(PeerId peer, const absl::Status& why) override {
    EXPECT_FALSE(down.contains(peer)) << "said twice";
    down[peer] = why;
  }
  void OnRemoved(PeerId peer) override { removed.push_back(peer); }

  void Cancel(PeerId peer, uint64_t round, size_t text = 0) {
    wire::RoundBody body{};
    body.round = round;
    endpoint->Send(peer, wire::RecordType::kCancel, BytesOf(body), std::vector<std::byte>(text));
  }

  // What PS_VERBOSE=2 tells of messages that have left.
  int logged = 0;
  Logger log{{.level = LogLevel::kInfo, .verbose = 2, .sink = Count, .user = this}};
  std::string address;
  std::unique_ptr<Endpoint> endpoint;
  std::vector<PeerId> ready, removed;
  std::vector<uint64_t> rounds;
  std::vector<uint32_t> landed;
  std::map<uint64_t, int32_t> written;
  std::map<PeerId, absl::Status> down;
  std::function<void()> on_record;
  int room = 0;

 private:
  static void Count(void* user, int32_t, const char*, int32_t, const char* message) {
    if (std::string_view(message).find("message to ") != std::string_view::npos) ++static_cast<Side*>(user)->logged;
  }

  static Transport Opened(const sim::SimTransport& opened) { return Transport::Adopt(opened.table, opened.transport); }

  uint32_t member_;
};

class EndpointPair : public testing::TestWithParam<uint64_t> {
 protected:
  EndpointPair() : fabric_(Options(GetParam())) {
    options_.session = kSession;
    options_.hello_interval = 10 * kMillisecond;
    options_.hello_timeout = 10 * kSecond;
    options_.ping_interval = kSecond;
    options_.peer_timeout = 4 * kSecond;
    options_.token = "secret";
    knobs_ = GetParam() == 0 ? sim::EndpointOptions{} : sim::AdverseEndpoint(fabric_.random());
  }

  static sim::FabricOptions Options(uint64_t seed) {
    sim::FabricOptions options;
    options.seed = sim::SeedOr(seed);
    sim::Random random(seed);
    if (seed != 0) options.link = sim::AdverseLink(random);
    return options;
  }

  std::unique_ptr<Side> Make(uint32_t member) {
    return std::make_unique<Side>(&fabric_, "node" + std::to_string(member), options_, member, knobs_);
  }

  // Polls all sides, 20 us apart (1 ms when nothing happens), until `done` or the deadline.
  template <typename Done>
  bool Run(std::initializer_list<Side*> sides, Done done, Time limit = 60 * kSecond) {
    const Time end = fabric_.now() + limit;
    int idle = 0;
    while (fabric_.now() < end) {
      ++idle;
      for (Side* side : sides) {
        if (side->endpoint->Poll(fabric_.now())) idle = 0;
      }
      if (done()) return true;
      bool ticked = false;
      const Time pause = idle > 100 ? kMillisecond : 20 * sim::kMicrosecond;
      fabric_.Timer(fabric_.now() + pause, [&ticked] { ticked = true; });
      while (!ticked) fabric_.Step();
    }
    return false;
  }

  // Like Make, but its transport refuses what `Refuses` says as if every peer were lost.
  enum class Refuses {
    kNothing,
    kMessages,
    kKeys,
    kWrites,
    kLargeWrites,
    kWritesForGood,
    kTogether
  };  // kWrites: for now
  std::unique_ptr<Side> MakeRefusing(uint32_t member) {
    static bps_transport_table honest, refusing;
    const sim::SimTransport opened = fabric_.Open("node" + std::to_string(member), knobs_);
    honest = refusing = *opened.table;
    refuses_ = Refuses::kNothing;
    refusing.post_send = [](bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user) {
      return refuses_ == Refuses::kMessages ? BPS_UNAVAILABLE : honest.post_send(transport, peer, data, size, user);
    };
    refusing.export_key = [](bps_transport* transport, bps_region* region, bps_peer peer, void* key) {
      return refuses_ == Refuses::kKeys ? BPS_UNAVAILABLE : honest.export_key(transport, region, peer, key);
    };
    refusing.post_write = [](bps_transport* transport, bps_peer peer, const bps_local* from, size_t size,
                             const bps_remote* to, uint32_t immediate, uint64_t user) {
      if (refuses_ == Refuses::kWrites || (refuses_ == Refuses::kLargeWrites && size > 1)) return BPS_TRANSPORT_AGAIN;
      if (refuses_ == Refuses::kWritesForGood) return BPS_UNAVAILABLE;
      return honest.post_write(transport, peer, from, size, to, immediate, user);
    };
    refusing.poll = [](bps_transport* transport, bps_event* events, size_t capacity) {
      const size_t count = honest.poll(transport, events, capacity);
      for (size_t i = 0; i < count && !why_.empty(); ++i) {
        if (events[i].type != BPS_EVENT_PEER_DOWN) continue;
        events[i].data = why_.data();
        events[i].size = why_.size();
      }
      return count;
    };
    refusing.post_send_and_write = [](bps_transport* transport, bps_peer peer, const void* message, size_t message_size,
                                      const bps_local* from, size_t size, const bps_remote* to, uint32_t immediate,
                                      uint64_t user) -> int32_t {
      if (refuses_ == Refuses::kTogether) return BPS_TRANSPORT_AGAIN;
      if (refuses_ == Refuses::kWritesForGood || refuses_ == Refuses::kMessages) return BPS_UNAVAILABLE;
      if (refuses_ != Refuses::kNothing) return BPS_UNIMPLEMENTED;
      return honest.post_send_and_write(transport, peer, message, message_size, from, size, to, immediate, user);
    };
    return std::make_unique<Side>(Transport::Adopt(&refusing, opened.transport), options_, member);
  }

  bool Connect(Side* a, Side* b) {
    EXPECT_TRUE(a->Add(fabric_.now(), *b).ok());
    EXPECT_TRUE(b->Add(fabric_.now(), *a).ok());
    return Run({a, b}, [&] { return a->ready.size() == 1 && b->ready.size() == 1; });
  }

  static inline Refuses refuses_;
  static inline std::string_view why_;  // what the transport of MakeRefusing says of whom it has lost
  sim::SimFabric fabric_;
  EndpointOptions options_;
  sim::EndpointOptions knobs_;
};

// 0: a well-behaved network; the others as bad as the contract allows.
inline const auto kSeeds = testing::Range<uint64_t>(0, 12);

}  // namespace byteps

#endif  // BYTEPS_TESTS_CORE_LINK_ENDPOINT_PAIR_H_
