#include "core/link/endpoint.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/auth.h"
#include "core/base/status.h"
#include "core/link/greeting.h"
#include "core/link/link.h"
#include "core/link/link_sender.h"
#include "core/plugin/plugin_host.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

// PING's flag: an answer is wanted. While one is outstanding no other is sent, so that a peer that does not read cannot
// be flooded.
struct PingBody {
  uint32_t question;
  uint32_t reserved;
};

std::string Seconds(Time nanoseconds) {
  return absl::StrCat(static_cast<double>(nanoseconds / 1000000) / 1000.0, " s");
}

// `event`: of the transport.
absl::Status WhyDown(const bps_event& event, const std::string& peer) {
  if (event.data != nullptr && event.size != 0) {
    const absl::string_view cause(static_cast<const char*>(event.data), event.size);
    const std::string text = absl::StrCat("the connection to ", peer, " is lost: it ", cause);
    if (event.code == BPS_INTERNAL) return absl::InternalError(text);  // the plugin broke its contract
    return event.code == BPS_RESOURCE_EXHAUSTED ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
  }
  if (event.code == BPS_RESOURCE_EXHAUSTED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the connection to ", peer,
                     " is lost: this process has no file descriptors (ulimit -n) or no memory left for it"));
  }
  return absl::UnavailableError(
      absl::StrCat("the connection to ", peer, " is lost: it has ended, or left, or the network has failed"));
}

// Three signs of life may be late before a peer is dead; where none is asked for, silence means nothing.
EndpointOptions Normalize(EndpointOptions options) {
  if (options.ping_interval <= 0) options.ping_interval = kNever;
  if (options.peer_timeout <= 0 || options.ping_interval == kNever) options.peer_timeout = kNever;
  if (options.peer_timeout != kNever) options.ping_interval = std::min(options.ping_interval, options.peer_timeout / 3);
  return options;
}

// A write that the transport never had.
struct Ended {
  PeerId peer;
  uint64_t user;
  int32_t code;
};

}  // namespace

struct Endpoint::Impl : LinkSenderSink {
  Transport transport;
  EndpointOptions options;
  EndpointHandler* handler;
  Logger* log;
  bps_transport_caps caps;
  LinkSender sender;
  std::map<PeerId, std::unique_ptr<Link>> links;         // ordered: a simulated run must repeat itself
  std::vector<PeerId> roomy;                             // of TellRoom: kept for its memory
  std::vector<std::pair<PeerId, absl::Status>> failing;  // told by the next Poll
  std::vector<Ended> ended;                              // the same
  Time now = 0;
  Time next_timer = kNever;
  bool closed = false;

  Impl(Transport t, EndpointOptions o, EndpointHandler* h, Logger* l)
      : transport(std::move(t)),
        options(Normalize(std::move(o))),
        handler(h),
        log(l),
        caps(transport.caps()),
        sender(&transport, l, this) {}

  Link* Find(PeerId peer) {
    auto it = links.find(peer);
    return it == links.end() ? nullptr : it->second.get();
  }
  Link* FindLink(PeerId peer) override { return Find(peer); }
  void OnWriteDropped(PeerId peer, uint64_t user, int32_t code) override { ended.push_back({peer, user, code}); }
  Link* FindReady(PeerId peer) {
    Link* link = Find(peer);
    return link != nullptr && link->state == LinkState::kReady ? link : nullptr;
  }

  void Arm(Time at) { next_timer = std::min(next_timer, at); }

  void SendHello(PeerId peer, Link* link) {
    const wire::HelloBody hello = MakeHello(*link, options.token, caps.receive_pool);
    if (link->accepted) link->told_accepted = true;
    sender.Urgent(peer, link, wire::RecordType::kHello, BytesOf(hello));
  }

  // ---- Receiving ----

  void Fail(PeerId peer, Link* link, absl::Status why) {
    if (link->state == LinkState::kDown || link->state == LinkState::kRemoving) return;
    link->state = LinkState::kDown;
    sender.Abandon(peer, link, BPS_UNAVAILABLE);
    failing.emplace_back(peer, std::move(why));
  }

  // What the transport has answered to a call that was just made, in its own words if it has any.
  std::string Refusal(int32_t code, const std::string& what) const {
    const std::string words = TakeLastWords(code);
    return absl::StrCat(what, " failed: the transport ",
                        transport.name().empty() ? "" : absl::StrCat("\"", transport.name(), "\" "), "answered ",
                        StatusCodeName(code), words.empty() ? "" : ": ", words);
  }

  // The transport took what was to be done for an error. Of a peer that it has lost its event knows the cause; the code
  // of this call does not.
  void OnRefused(PeerId peer, Link* link, int32_t code, const std::string& what) override {
    absl::Status why(static_cast<absl::StatusCode>(code), Refusal(code, what));
    if (code != BPS_UNAVAILABLE) return Fail(peer, link, std::move(why));
    link->state = LinkState::kLost;
    link->refusal = std::move(why);
    link->lost_deadline = kNever;  // counted from the next Poll: the last one may be long ago
    Arm(now);
  }

  void Violation(PeerId peer, Link* link, std::string what) {
    Fail(peer, link, absl::UnavailableError(absl::StrCat(link->spec.description, " broke the protocol: ", what)));
  }

  void OnHello(PeerId peer, Link* link, std::span<const std::byte> body) {
    wire::HelloBody hello;
    if (absl::Status status = CheckHello(*link, options.token, body, &hello); !status.ok()) {
      return Fail(peer, link, std::move(status));
    }
    if (!std::exchange(link->accepted, true)) link->send_credits = hello.receive_pool - kReservedMessages;
    const bool was_ready = link->state == LinkState::kReady;
    if (hello.answered != 0) link->answered = true;
    if (hello.answered == 0 || !link->told_accepted) SendHello(peer, link);
    if (!was_ready && link->answered && link->state == LinkState::kGreeting) {
      link->state = LinkState::kReady;
      link->heard = now;
      Arm(PingAt(*link));
      sender.MarkDirty(peer, link);
      BPS_LOG(*log, kDebug) << "the link to " << link->spec.description << ", lane " << link->spec.lane
                            << ", is up over " << transport.NameOf(peer) << " after " << (now - link->begun) / 1000
                            << " us";
      handler->OnReady(peer);
    }
  }

  // The peer lends slots, for the first time or again.
  void OnSlots(PeerId peer, Link* link, const std::string& wrong) {
    if (!wrong.empty()) return Violation(peer, link, wrong);
    handler->OnRoom(peer);
  }

  void OnMessage(PeerId peer, std::span<const std::byte> bytes) {
    Link* link = Find(peer);
    if (link == nullptr || (link->state != LinkState::kGreeting && link->state != LinkState::kReady)) return;
    MessageReader reader;
    if (absl::Status status = reader.Parse(bytes); !status.ok()) {
      return Violation(peer, link, std::string(status.message()));
    }
    if (reader.header().session != link->spec.session || reader.header().epoch != link->spec.epoch) {
      return Violation(peer, link,
                       absl::StrCat("a message of session ", reader.header().session, " epoch ", reader.header().epoch,
                                    " on a link of session ", link->spec.session, " epoch ", link->spec.epoch));
    }
    link->heard = now;
    bool counted = false;
    while (auto record = reader.Next()) {
      switch (record->type) {
        case wire::RecordType::kHello:
          OnHello(peer, link, record->body);
          break;
        case wire::RecordType::kPing: {
          PingBody ping;
          if (!ReadStruct(record->body, &ping)) return Violation(peer, link, "PING is too short");
          if (link->ping_outstanding) {
            link->ping_outstanding = false;
            Arm(PingAt(*link));
          }
          if (ping.question != 0) sender.Urgent(peer, link, wire::RecordType::kPing, BytesOf(PingBody{0, 0}));
          break;
        }
        case wire::RecordType::kCredit:
          break;
        default:
          counted = true;
          if (link->state != LinkState::kReady) return Violation(peer, link, "data before HELLO");
          if (record->type == wire::RecordType::kLease) {
            OnSlots(peer, link, link->leases.OnLease(record->body));
          } else if (record->type == wire::RecordType::kReturn) {
            OnSlots(peer, link, link->leases.OnReturn(record->body));
          } else {
            handler->OnRecord(peer, record->type, record->body);
          }
      }
      // The handler may have removed the peer.
      if (Find(peer) != link || (link->state != LinkState::kGreeting && link->state != LinkState::kReady)) return;
    }
    if (reader.header().credits > 0) {
      const bool blocked = link->send_credits == 0 && !link->outbox.empty();
      const uint64_t credits = uint64_t{link->send_credits} + reader.header().credits;
      if (credits > kMaxReceivePool) return Violation(peer, link, absl::StrCat("credits for ", credits, " messages"));
      link->send_credits = static_cast<uint32_t>(credits);
      if (blocked) {
        sender.WantRoom(link);
        sender.MarkDirty(peer, link);
      }
    }
    if (counted) {
      ++link->owed_credits;
      sender.MarkDirty(peer, link);
    }
  }

  void Dispatch(const bps_event& event) {
    switch (event.type) {
      case BPS_EVENT_SENT:
        break;  // a failure is followed by PEER_DOWN
      case BPS_EVENT_WRITTEN:
        handler->OnWritten(event.peer, event.user, event.code);
        break;
      case BPS_EVENT_MESSAGE:
        OnMessage(event.peer, {static_cast<const std::byte*>(event.data), event.size});
        transport.Release(event.lease);
        break;
      case BPS_EVENT_IMMEDIATE:
        handler->OnLanded(event.immediate);
        break;
      case BPS_EVENT_PEER_DOWN:
        if (Link* link = Find(event.peer)) {
          Fail(event.peer, link, WhyDown(event, link->spec.description));
        }
        break;
      case BPS_EVENT_DISCONNECTED:
        if (Find(event.peer) != nullptr) {
          links.erase(event.peer);
          handler->OnRemoved(event.peer);
        }
        break;
      default:
        break;  // of a plugin: it has been named (core/plugin/transport_audit.h)
    }
  }

  void TellEnded() {
    // OnWritten may add more.
    for (size_t i = 0; i < ended.size(); ++i) {
      const Ended write = ended[i];
      if (Find(write.peer) != nullptr) handler->OnWritten(write.peer, write.user, write.code);
    }
    ended.clear();
  }

  void TellFailures() {
    // OnPeerDown may add more.
    for (size_t i = 0; i < failing.size(); ++i) {
      const auto [peer, why] = failing[i];
      if (Find(peer) != nullptr) handler->OnPeerDown(peer, why);
    }
    failing.clear();
  }

  // At every Poll: AGAIN says no more than "try after the next poll", and no event need come before there is room.
  void TellRoom() {
    if (!sender.TakeRoomWanted()) return;
    roomy.clear();
    for (auto& [peer, link] : links) {
      if (link->wants_room && link->state == LinkState::kReady) {
        link->wants_room = false;
        roomy.push_back(peer);
      }
    }
    for (PeerId peer : roomy) handler->OnRoom(peer);
  }

  Time PingAt(const Link& link) const { return After(link.heard, options.ping_interval); }

  // Only peers that were asked and had the time to answer: this process may have slept itself, with all the others.
  Time DeadAt(const Link& link) const {
    if (!link.ping_outstanding) return kNever;
    return After(std::max(link.heard, link.asked - options.ping_interval), options.peer_timeout);
  }

  void Timers() {
    if (now < next_timer) return;
    next_timer = kNever;
    for (auto& [peer, link] : links) {
      if (link->state == LinkState::kGreeting) {
        if (now >= link->hello_deadline) {
          Fail(peer, link.get(),
               absl::DeadlineExceededError(absl::StrCat("no HELLO from ", link->spec.description, " within ",
                                                        Seconds(options.hello_timeout),
                                                        link->accepted ? "" : ": it cannot be reached")));
          continue;
        }
        if (now >= link->hello_at) {
          SendHello(peer, link.get());
          // Doubling without a cap: the peer's own first HELLO is answered at once, whenever it comes.
          link->hello_wait *= 2;
          link->hello_at = now + link->hello_wait;
        }
        Arm(std::min(link->hello_at, link->hello_deadline));
      } else if (link->state == LinkState::kReady) {
        if (now >= DeadAt(*link)) {
          Fail(peer, link.get(),
               absl::UnavailableError(
                   absl::StrCat("no sign of life from ", link->spec.description, " for ", Seconds(now - link->heard),
                                ": it is stopped, its host or a link is down, or packets are lost on the way between "
                                "the two (a firewall; where only large ones are, an MTU that differs)")));
          continue;
        }
        if (!link->ping_outstanding && now >= PingAt(*link)) {
          link->ping_outstanding = true;
          link->asked = now;
          sender.Urgent(peer, link.get(), wire::RecordType::kPing, BytesOf(PingBody{1, 0}));
        }
        Arm(link->ping_outstanding ? DeadAt(*link) : PingAt(*link));
      } else if (link->state == LinkState::kLost) {
        if (link->lost_deadline == kNever) link->lost_deadline = now + kLossGrace;
        if (now >= link->lost_deadline) {
          Fail(peer, link.get(), link->refusal);
        } else {
          Arm(link->lost_deadline);
        }
      }
    }
  }
};

Endpoint::Endpoint(Transport transport, EndpointOptions options, EndpointHandler* handler, Logger* log)
    : impl_(std::make_unique<Impl>(std::move(transport), std::move(options), handler, log)) {}

Endpoint::~Endpoint() { Close(); }

const bps_transport_caps& Endpoint::caps() const { return impl_->caps; }
Transport& Endpoint::transport() { return impl_->transport; }

absl::Status Endpoint::AddPeer(Time now, const PeerSpec& spec) {
  Impl& self = *impl_;
  if (self.links.contains(spec.id)) {
    return absl::InternalError(absl::StrCat("peer ", spec.id, " is there already"));
  }
  bps_connect_args args{};
  args.struct_size = sizeof args;
  args.peer = spec.id;
  args.local_id = spec.local_id;
  args.address = spec.address.data();
  args.address_size = spec.address.size();
  args.name = spec.description.c_str();
  if (absl::Status status = self.transport.Connect(args); !status.ok()) {
    return absl::Status(
        status.code(), absl::StrCat("cannot connect to ", spec.description, ": ", absl::string_view(status.message())));
  }
  auto link = std::make_unique<Link>(self.sender.memory());
  link->spec = spec;
  link->nonce = RandomNumber();
  link->begun = now;
  link->hello_wait = self.options.hello_interval;
  link->hello_at = now + link->hello_wait;
  link->hello_deadline = now + self.options.hello_timeout;
  self.Arm(std::min(link->hello_at, link->hello_deadline));
  Link* raw = link.get();
  self.links.emplace(spec.id, std::move(link));
  self.SendHello(spec.id, raw);
  return absl::OkStatus();
}

void Endpoint::RemovePeer(PeerId peer) {
  Link* link = impl_->Find(peer);
  if (link == nullptr || link->state == LinkState::kRemoving) return;
  link->state = LinkState::kRemoving;
  impl_->sender.Abandon(peer, link, BPS_CANCELLED);
  impl_->transport.Disconnect(peer);
}

bool Endpoint::Ready(PeerId peer) const { return impl_->FindReady(peer) != nullptr; }

void Endpoint::Send(PeerId peer, wire::RecordType type, std::span<const std::byte> fixed,
                    std::span<const std::byte> payload) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return;  // OnPeerDown has told, or will
  impl_->sender.Queue(peer, link, type, fixed, payload);
}

size_t Endpoint::MaxRecord() const {
  return impl_->caps.max_message - sizeof(wire::MessageHeader) - sizeof(wire::RecordHeader) - 8;
}

size_t Endpoint::Queued(PeerId peer) const {
  Link* link = impl_->Find(peer);
  return link == nullptr ? 0 : link->outbox_bytes;
}

bool Endpoint::Sent() const {
  return std::all_of(impl_->links.begin(), impl_->links.end(),
                     [](const auto& link) { return link.second->outbox.empty() && !link.second->owed; });
}

bool Endpoint::Write(PeerId peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                     uint64_t user, const Announcement& record) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return false;
  return impl_->sender.Write(peer, link, from, size, to, immediate, user, record);
}

bool Endpoint::WriteSlot(PeerId peer, const bps_local& from, size_t size, const RemoteSlot& slot, uint64_t user,
                         const Announcement& record) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return false;
  const std::optional<bps_remote> remote = link->leases.RemoteOf(slot);
  if (!remote) {
    const uint32_t number = wire::ImmediateSlot(slot.immediate);
    impl_->Violation(peer, link, absl::StrCat("slot ", number, " is of none of its leases"));
    return false;
  }
  return impl_->sender.Write(peer, link, from, size, *remote, slot.immediate, user, record);
}

size_t Endpoint::FreeSlots(PeerId peer) const {
  Link* link = impl_->FindReady(peer);
  return link == nullptr ? 0 : link->leases.free();
}

size_t Endpoint::TakenSlots(PeerId peer) const {
  Link* link = impl_->FindReady(peer);
  return link == nullptr ? 0 : link->leases.taken();
}

std::optional<RemoteSlot> Endpoint::TakeSlot(PeerId peer) {
  Link* link = impl_->FindReady(peer);
  return link == nullptr ? std::nullopt : link->leases.Take();
}

void Endpoint::GiveBack(PeerId peer, const RemoteSlot& slot) {
  if (Link* link = impl_->Find(peer); link != nullptr) link->leases.GiveBack(slot);
}

absl::Status Endpoint::Lend(PeerId peer, bps_region* region, uint64_t offset, uint64_t slot_bytes, uint32_t first_slot,
                            uint32_t slots) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return absl::OkStatus();  // OnPeerDown has told, or will
  wire::LeaseBody body{};
  body.slot_bytes = slot_bytes;
  body.offset = offset;
  body.first_slot = first_slot;
  body.slots = slots;
  body.key_size = impl_->caps.key_size;
  if (const int32_t code = impl_->transport.ExportKey(region, peer, body.key); code != BPS_OK) {
    const std::string what = absl::StrCat("showing the landing slots to ", link->spec.description);
    if (code == BPS_UNAVAILABLE) {
      impl_->OnRefused(peer, link, code, what);
      return absl::OkStatus();
    }
    return absl::Status(static_cast<absl::StatusCode>(code), impl_->Refusal(code, what));
  }
  impl_->sender.Queue(peer, link, wire::RecordType::kLease, BytesOf(body), {});
  return absl::OkStatus();
}

void Endpoint::Return(PeerId peer, uint32_t immediate) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return;
  link->returns.push_back(immediate);
  impl_->sender.MarkDirty(peer, link);
}

bool Endpoint::Poll(Time now) {
  Impl& self = *impl_;
  if (self.closed) return false;
  self.now = now;
  bool worked = !self.ended.empty();
  self.TellEnded();  // before the fence may come
  self.Timers();
  self.sender.Flush();
  std::array<bps_event, 64> events;
  const size_t count = self.transport.Poll(events.data(), events.size());
  for (size_t i = 0; i < count; ++i) self.Dispatch(events[i]);
  worked |= count > 0;
  self.TellRoom();
  if (!self.failing.empty()) {
    worked = true;
    self.TellFailures();
  }
  self.sender.Flush();
  return worked;
}

Time Endpoint::NextTimer() const {
  // What the transport would not take is tried again soon; its descriptor need not say when it can.
  if (!impl_->failing.empty() || !impl_->ended.empty()) return impl_->now;
  if (impl_->sender.waiting() || impl_->sender.room_wanted()) return std::min(impl_->next_timer, impl_->now + 1000000);
  return impl_->next_timer;
}

int Endpoint::WaitFd() { return impl_->transport.WaitFd(); }
bool Endpoint::Arm() { return impl_->transport.Arm(); }

void Endpoint::Close() {
  if (impl_->closed) return;
  impl_->closed = true;
  impl_->links.clear();
}

}  // namespace byteps
