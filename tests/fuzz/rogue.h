// rogue.h - the other side of a link, which says whatever it is given: any record, right or wrong.
//
//     Rogue rogue(fabric.Open("rogue"));
//     rogue.Meet(now, {.own = 2, .other = 1, .id = 1, .local_id = 2}, address_of_the_other);
//     rogue.Say(1, type, bytes);          // behind HELLO
//     rogue.Poll(now);
#ifndef BYTEPS_TESTS_FUZZ_ROGUE_H_
#define BYTEPS_TESTS_FUZZ_ROGUE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "core/base/log.h"
#include "core/base/time.h"
#include "core/link/endpoint.h"
#include "core/plugin/transport.h"
#include "core/wire/wire.h"
#include "tests/fuzz/input.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps::fuzz {

inline constexpr uint64_t kSession = 42;

inline EndpointOptions LinkOptions() {
  EndpointOptions options;
  options.session = kSession;
  options.hello_interval = kMillisecond;
  options.hello_timeout = 5 * kSecond;
  options.ping_interval = kSecond;
  options.peer_timeout = 3 * kSecond;
  return options;
}

// A key that no member has given out is refused, as hardware does; all else that breaks the contract is a defect.
inline sim::FabricOptions Fabric() {
  sim::FabricOptions options;
  options.violation = [](const std::string& what) {
    if (what.find(" key") != std::string::npos || what.find("accessed bytes") != std::string::npos) return;
    std::fprintf(stderr, "sim: %s\n", what.c_str());
    __builtin_trap();
  };
  return options;
}

inline PeerSpec Spec(uint32_t own, uint32_t other, PeerId id, uint32_t local_id, const std::string& address) {
  PeerSpec spec;
  spec.session = kSession;
  spec.epoch = 1;
  spec.session_nonce = "nonce";
  spec.own_member = own;
  spec.member = other;
  spec.address = address;
  spec.description = "member " + std::to_string(other);
  spec.id = id;
  spec.local_id = local_id;
  return spec;
}

class Rogue : private EndpointHandler {
 public:
  explicit Rogue(const sim::SimTransport& opened) {
    Transport transport = Transport::Adopt(opened.table, opened.transport);
    address_ = *transport.Address();
    EndpointHandler* handler = this;
    endpoint_ = std::make_unique<Endpoint>(std::move(transport), LinkOptions(), handler, &log_);
  }

  const std::string& address() const { return address_; }
  void Meet(Time now, const PeerSpec& spec) { BPS_FUZZ_CHECK(endpoint_->AddPeer(now, spec).ok()); }
  void Say(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
    endpoint_->Send(peer, type, body.first(std::min(body.size(), endpoint_->MaxRecord())));
  }
  bool Poll(Time now) { return endpoint_->Poll(now); }
  Time NextTimer() const { return endpoint_->NextTimer(); }
  // Has a peer said HELLO? What is said before is lost.
  bool ready() const { return ready_; }
  bool lost() const { return lost_; }

 private:
  void OnReady(PeerId) override { ready_ = true; }
  void OnRecord(PeerId, wire::RecordType, std::span<const std::byte>) override {}
  void OnLanded(uint32_t) override {}
  void OnWritten(PeerId, uint64_t, int32_t) override {}
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId, const absl::Status&) override { lost_ = true; }
  void OnRemoved(PeerId) override {}

  Logger log_{LogOptions{.level = LogLevel::kFatal}};
  std::string address_;
  std::unique_ptr<Endpoint> endpoint_;
  bool ready_ = false, lost_ = false;
};

}  // namespace byteps::fuzz

#endif  // BYTEPS_TESTS_FUZZ_ROGUE_H_
