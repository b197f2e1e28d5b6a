#include "core/link/endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory_resource>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/auth.h"
#include "core/base/status.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

// A write of so many bytes keeps what comes behind it waiting for longer than a message of its own takes. No part that a
// link's rate has cut is smaller (server/membership/placement.h): records behind such writes cost a tenth of the links' time.
constexpr size_t kBulk = size_t{16} << 10;

// Messages of every receive pool that credits do not cover: two kCredit, two PING (a question and an answer), and the
// HELLOs of the beginning, which come before any credit is known.
constexpr uint32_t kReservedMessages = 6;

// More than this of what goes without credits never waits: a peer that asks again and again and reads nothing gets one answer
// fewer, and fills no memory.
constexpr size_t kMostUrgent = 16;

// The largest pool that makes sense; and of leases, the largest slot and offset.
constexpr uint32_t kMostPool = 1u << 20;
constexpr uint64_t kMostBytes = uint64_t{1} << 40;

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

// Whoever makes them: three signs of life may be late before a peer is dead, and where none is asked for, silence says
// nothing.
EndpointOptions Sound(EndpointOptions options) {
  if (options.ping_interval <= 0) options.ping_interval = kNever;
  if (options.peer_timeout <= 0 || options.ping_interval == kNever) options.peer_timeout = kNever;
  if (options.peer_timeout != kNever) options.ping_interval = std::min(options.ping_interval, options.peer_timeout / 3);
  return options;
}

struct Lease {
  wire::LeaseBody body;
  std::vector<bool> taken;  // by slot: to be written, or written, and not returned yet
};

// A write whose record has left, for a transport that did not take it.
struct Owed {
  bps_local from;
  size_t size;
  std::array<uint8_t, wire::kMaxKey> key;
  size_t key_size;
  uint64_t offset;
  uint32_t immediate;
  uint64_t user;
};

// kLost: the transport refuses it, and is about to say why.
enum class LinkState { kGreeting, kReady, kLost, kDown, kRemoving };

struct Link {
  explicit Link(std::pmr::memory_resource* memory) : outbox(memory), urgent(memory) {}

  PeerSpec spec;
  LinkState state = LinkState::kGreeting;

  // HELLO.
  uint64_t nonce = 0;
  bool accepted = false;       // the peer's HELLO was proven
  bool answered = false;       // the peer has accepted ours
  bool told_accepted = false;  // we have told it so
  Time hello_wait = 0;
  Time hello_at = 0;
  Time hello_deadline = 0;

  // kLost.
  Time lost_deadline = kNever;
  absl::Status refusal;  // what there is to say if no word comes

  // Liveness.
  Time heard = 0;
  Time asked = 0;
  bool ping_outstanding = false;

  // Credits: messages we may send, and releases the peer has not been told of.
  uint32_t send_credits = 0;
  uint32_t owed_credits = 0;

  std::pmr::deque<MessageBuilder> outbox;
  size_t outbox_bytes = 0;
  // Records that go without credits: HELLO, PING, kCredit.
  std::pmr::deque<MessageBuilder> urgent;
  bool dirty = false;
  bool wants_room = false;
  std::optional<Owed> owed;  // goes before any other write

  std::vector<Lease> leases;
  size_t lent_slots = 0;  // by the peer, to us
  std::vector<RemoteSlot> free_slots;
  std::vector<uint32_t> returns;  // immediates to be announced with kReturn
};

// A write that the transport never had.
struct Ended {
  PeerId peer;
  uint64_t user;
  int32_t code;
};

}  // namespace

struct Endpoint::Impl {
  Transport transport;
  EndpointOptions options;
  EndpointHandler* handler;
  Logger* log;
  bps_transport_caps caps;
  // Of messages that wait: used again and again.
  std::pmr::unsynchronized_pool_resource memory{{.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 16}};
  std::map<PeerId, std::unique_ptr<Link>> links;  // ordered: a simulated run must repeat itself
  std::vector<PeerId> dirty;
  std::vector<PeerId> flushing, roomy;                   // of Flush and TellRoom: kept for their memory
  std::vector<std::pair<PeerId, absl::Status>> failing;  // told by the next Poll
  std::vector<Ended> ended;                              // the same
  Time now = 0;
  Time next_timer = kNever;
  bool room_wanted = false;  // by some link: a write was answered with AGAIN, or credits came for a full outbox
  bool closed = false;

  Impl(Transport t, EndpointOptions o, EndpointHandler* h, Logger* l)
      : transport(std::move(t)), options(Sound(std::move(o))), handler(h), log(l), caps(transport.caps()) {}

  Link* Find(PeerId peer) {
    auto it = links.find(peer);
    return it == links.end() ? nullptr : it->second.get();
  }
  Link* FindReady(PeerId peer) {
    Link* link = Find(peer);
    return link != nullptr && link->state == LinkState::kReady ? link : nullptr;
  }

  void MarkDirty(PeerId peer, Link* link) {
    if (link->dirty) return;
    link->dirty = true;
    dirty.push_back(peer);
  }

  void Arm(Time at) { next_timer = std::min(next_timer, at); }

  void Urgent(PeerId peer, Link* link, wire::RecordType type, std::span<const std::byte> body) {
    if (link->urgent.size() >= kMostUrgent && type != wire::RecordType::kCredit) return;
    link->urgent.emplace_back(caps.max_message, &memory);
    link->urgent.back().Append(type, body, {});
    MarkDirty(peer, link);
  }

  void Queue(PeerId peer, Link* link, wire::RecordType type, std::span<const std::byte> fixed,
             std::span<const std::byte> payload) {
    if (link->outbox.empty() || !link->outbox.back().Append(type, fixed, payload)) {
      link->outbox.emplace_back(caps.max_message, &memory);
      link->outbox.back().Append(type, fixed, payload);
    }
    link->outbox_bytes += RecordSize(fixed.size(), payload.size());
    MarkDirty(peer, link);
  }

  void SendHello(PeerId peer, Link* link) {
    wire::HelloBody hello{};
    hello.member = link->spec.own_member;
    hello.lane = link->spec.own_lane;
    hello.to_member = link->spec.member;
    hello.to_lane = link->spec.lane;
    hello.answered = link->accepted ? 1 : 0;
    hello.receive_pool = caps.receive_pool;
    hello.nonce = link->nonce;
    const Proof proof = ProofOf(*link, hello);
    std::memcpy(hello.proof, proof.data(), sizeof hello.proof);
    if (link->accepted) link->told_accepted = true;
    Urgent(peer, link, wire::RecordType::kHello, BytesOf(hello));
  }

  Proof ProofOf(const Link& link, const wire::HelloBody& hello) const {
    return DataProof(options.token, link.spec.session_nonce, link.spec.session, link.spec.epoch, hello.member,
                     hello.lane, hello.to_member, hello.to_lane, hello.nonce);
  }

  // ---- Sending ----

  // False: the transport takes nothing more now.
  bool Post(PeerId peer, Link* link, MessageBuilder* message) {
    message->Finish(link->spec.session, link->spec.epoch, link->owed_credits);
    const auto bytes = message->bytes();
    const int32_t code = transport.PostSend(peer, bytes.data(), bytes.size(), 0);
    if (code == BPS_TRANSPORT_AGAIN) return false;
    if (code != BPS_OK) {
      Refused(peer, link, code, absl::StrCat("sending to ", link->spec.description));
      return false;
    }
    MessageLeft(link, *message);
    return true;
  }

  void MessageLeft(Link* link, const MessageBuilder& message) {
    link->owed_credits = 0;
    BPS_VERBOSE(*log, 2) << "message to " << link->spec.description << ": " << message.records() << " records, "
                         << message.bytes().size() << " bytes";
  }

  // True if nothing is left that the transport would not take.
  bool FlushLink(PeerId peer, Link* link) {
    if (link->owed) {
      if (!FlushRecords(peer, link, 1)) return false;
      const int32_t code = PostTogether(peer, link);
      if (code == BPS_TRANSPORT_AGAIN) return false;
      if (code != BPS_OK && code != BPS_UNIMPLEMENTED) {
        Refused(peer, link, code, absl::StrCat("writing ", link->owed->size, " bytes to ", link->spec.description));
        return false;
      }
    }
    return FlushRecords(peer, link, 0) && FlushOwed(peer, link);
  }

  // The last message that waits, and the owed write behind it, as one; or UNIMPLEMENTED.
  int32_t PostTogether(PeerId peer, Link* link) {
    if (link->state != LinkState::kReady || link->outbox.size() != 1 || link->send_credits == 0) {
      return BPS_UNIMPLEMENTED;
    }
    MessageBuilder& message = link->outbox.front();
    message.Finish(link->spec.session, link->spec.epoch, link->owed_credits);
    const Owed& owed = *link->owed;
    const bps_remote to{owed.key.data(), owed.key_size, owed.offset};
    const int32_t code =
        transport.PostSendAndWrite(peer, message.bytes(), owed.from, owed.size, to, owed.immediate, owed.user);
    if (code != BPS_OK) return code;
    MessageLeft(link, message);
    link->owed.reset();
    PopMessage(link);
    return BPS_OK;
  }

  // The first message has left.
  void PopMessage(Link* link) {
    const size_t size = link->outbox.front().bytes().size() - sizeof(wire::MessageHeader);
    --link->send_credits;
    link->outbox_bytes -= std::min(link->outbox_bytes, size);
    link->outbox.pop_front();
  }

  bool FlushOwed(PeerId peer, Link* link) {
    if (!link->owed) return true;
    const Owed owed = *link->owed;
    const bps_remote to{owed.key.data(), owed.key_size, owed.offset};
    if (!PostWrite(peer, link, owed.from, owed.size, to, owed.immediate, owed.user)) return false;
    link->owed.reset();
    return true;
  }

  bool PostWrite(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                 uint64_t user) {
    const int32_t code = transport.PostWrite(peer, from, size, to, immediate, user);
    if (code == BPS_OK) return true;
    if (code == BPS_TRANSPORT_AGAIN) {
      WantRoom(link);
    } else {
      Refused(peer, link, code, absl::StrCat("writing ", size, " bytes to ", link->spec.description));
    }
    return false;
  }

  // The record leaves before its bytes: whoever reads it first knows what they are.
  bool WriteAnnounced(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to,
                      uint32_t immediate, uint64_t user, const Announcement& record) {
    // Of small ones several records share a message, behind their writes.
    if (size < kBulk || record.fixed.empty()) {
      if (!PostWrite(peer, link, from, size, to, immediate, user)) return false;
      if (!record.fixed.empty()) Queue(peer, link, record.type, record.fixed, {});
      return true;
    }
    Queue(peer, link, record.type, record.fixed, {});
    Owed& owed = link->owed.emplace(Owed{from, size, {}, to.key_size, to.offset, immediate, user});
    std::memcpy(owed.key.data(), to.key, to.key_size);
    FlushLink(peer, link);
    return true;
  }

  // Nothing of the link goes any more.
  void Abandon(PeerId peer, Link* link, int32_t code) {
    link->outbox.clear();
    link->urgent.clear();
    link->outbox_bytes = 0;
    if (link->owed) ended.push_back({peer, link->owed->user, code});
    link->owed.reset();
  }

  // True if no more than so many messages are in the peer's outbox afterwards, or it waits for credits.
  bool FlushRecords(PeerId peer, Link* link, size_t most) {
    while (!link->urgent.empty()) {
      if (!Post(peer, link, &link->urgent.front())) return false;
      link->urgent.pop_front();
    }
    if (link->state != LinkState::kReady) return true;
    FlushReturns(peer, link);
    while (link->outbox.size() > most) {
      if (link->send_credits == 0) break;
      if (!Post(peer, link, &link->outbox.front())) return false;
      PopMessage(link);
    }
    if (link->owed_credits >= std::max<uint32_t>(1, (caps.receive_pool - kReservedMessages) / 2)) {
      Urgent(peer, link, wire::RecordType::kCredit, {});
      if (!Post(peer, link, &link->urgent.front())) return false;
      link->urgent.pop_front();
    }
    // What waits for credits is flushed when they come.
    return true;
  }

  void FlushReturns(PeerId peer, Link* link) {
    // An immediate costs 4 bytes: all that can be outstanding fits into one record of the smallest max_message many
    // times over, but a lease may be as large as its owner likes.
    constexpr size_t kMost = 1024;
    size_t at = 0;
    while (at < link->returns.size()) {
      const size_t count = std::min(kMost, link->returns.size() - at);
      const wire::ReturnBody body{static_cast<uint32_t>(count), 0};
      Queue(peer, link, wire::RecordType::kReturn, BytesOf(body),
            std::as_bytes(std::span<const uint32_t>(link->returns.data() + at, count)));
      at += count;
    }
    link->returns.clear();
  }

  bool Flush() {
    if (dirty.empty()) return false;
    flushing.clear();
    flushing.swap(dirty);
    for (PeerId peer : flushing) {
      Link* link = Find(peer);
      if (link == nullptr) continue;
      link->dirty = false;
      if (link->state != LinkState::kGreeting && link->state != LinkState::kReady) continue;
      if (!FlushLink(peer, link)) MarkDirty(peer, link);
    }
    return true;
  }

  // ---- Receiving ----

  void Fail(PeerId peer, Link* link, absl::Status why) {
    if (link->state == LinkState::kDown || link->state == LinkState::kRemoving) return;
    link->state = LinkState::kDown;
    Abandon(peer, link, BPS_UNAVAILABLE);
    failing.emplace_back(peer, std::move(why));
  }

  // The transport took what was to be done for an error. Of a peer that it has lost its event knows the cause; the code
  // of this call does not.
  void Refused(PeerId peer, Link* link, int32_t code, const std::string& what) {
    absl::Status why(static_cast<absl::StatusCode>(code),
                     absl::StrCat(what, " failed: the transport answered ", StatusCodeName(code)));
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
    if (!ReadStruct(body, &hello)) return Violation(peer, link, "HELLO is too short");
    const PeerSpec& spec = link->spec;
    if (hello.member != spec.member || hello.lane != spec.lane || hello.to_member != spec.own_member ||
        hello.to_lane != spec.own_lane) {
      return Violation(peer, link,
                       absl::StrCat("HELLO from member ", hello.member, " lane ", hello.lane, " to member ",
                                    hello.to_member, " lane ", hello.to_lane, "; expected ", spec.member, " ",
                                    spec.lane, " to ", spec.own_member, " ", spec.own_lane));
    }
    const Proof proof = ProofOf(*link, hello);
    if (!SameProof(std::span<const uint8_t, kProofBytes>(hello.proof), proof)) {
      return Fail(
          peer, link,
          absl::UnauthenticatedError(absl::StrCat(spec.description, " did not prove that it knows this job's token")));
    }
    const bool first = !link->accepted;
    link->accepted = true;
    if (first) {
      if (hello.receive_pool <= kReservedMessages || hello.receive_pool > kMostPool) {
        return Violation(peer, link, absl::StrCat("HELLO announces a receive pool of ", hello.receive_pool));
      }
      link->send_credits = hello.receive_pool - kReservedMessages;
    }
    const bool was_ready = link->state == LinkState::kReady;
    if (hello.answered != 0) link->answered = true;
    if (hello.answered == 0 || !link->told_accepted) SendHello(peer, link);
    if (!was_ready && link->answered && link->state == LinkState::kGreeting) {
      link->state = LinkState::kReady;
      link->heard = now;
      Arm(PingAt(*link));
      MarkDirty(peer, link);
      handler->OnReady(peer);
    }
  }

  void OnLease(PeerId peer, Link* link, std::span<const std::byte> body) {
    Lease lease;
    if (!ReadStruct(body, &lease.body)) return Violation(peer, link, "LEASE is too short");
    const wire::LeaseBody& b = lease.body;
    const uint64_t end = uint64_t{b.first_slot} + b.slots;
    if (b.key_size > wire::kMaxKey || b.slots == 0 || b.slot_bytes == 0 || end > (1u << wire::kSlotBits) ||
        b.slot_bytes > kMostBytes || b.offset > kMostBytes) {
      return Violation(peer, link,
                       absl::StrCat("LEASE of ", b.slots, " slots of ", b.slot_bytes, " bytes from slot ", b.first_slot,
                                    " on, at ", b.offset, ", with a key of ", b.key_size, " bytes"));
    }
    for (const Lease& other : link->leases) {
      if (b.first_slot < other.body.first_slot + other.body.slots && other.body.first_slot < end) {
        return Violation(
            peer, link,
            absl::StrCat("LEASE of slots ", b.first_slot, " to ", end - 1, ", some of which ", "it has lent already"));
      }
    }
    lease.taken.resize(b.slots);
    link->leases.push_back(lease);
    link->lent_slots += b.slots;
    for (uint32_t i = b.slots; i-- > 0;) {
      link->free_slots.push_back({wire::Immediate(b.first_slot + i, 0), b.offset + i * b.slot_bytes, b.slot_bytes});
    }
    handler->OnRoom(peer);
  }

  static Lease* LeaseOf(Link& link, uint32_t slot) {
    for (Lease& lease : link.leases) {
      if (slot >= lease.body.first_slot && slot - lease.body.first_slot < lease.body.slots) return &lease;
    }
    return nullptr;
  }

  void OnReturn(PeerId peer, Link* link, std::span<const std::byte> body) {
    wire::ReturnBody header;
    if (!ReadStruct(body, &header)) return Violation(peer, link, "RETURN is too short");
    std::span<const std::byte> rest = body.subspan(sizeof header);
    if (rest.size() / sizeof(uint32_t) < header.count) return Violation(peer, link, "RETURN is cut off");
    for (uint32_t i = 0; i < header.count; ++i) {
      uint32_t immediate;
      std::memcpy(&immediate, rest.data() + i * sizeof immediate, sizeof immediate);
      const uint32_t slot = wire::ImmediateSlot(immediate);
      Lease* lease = LeaseOf(*link, slot);
      if (lease == nullptr) return Violation(peer, link, absl::StrCat("RETURN of slot ", slot, " that it never lent"));
      // One that is free would be free twice, and two writes would go to one place.
      auto taken = lease->taken[slot - lease->body.first_slot];
      if (!taken) return Violation(peer, link, absl::StrCat("RETURN of slot ", slot, ", which was not taken"));
      taken = false;
      link->free_slots.push_back({immediate,
                                  lease->body.offset + (slot - lease->body.first_slot) * lease->body.slot_bytes,
                                  lease->body.slot_bytes});
    }
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
          if (ping.question != 0) Urgent(peer, link, wire::RecordType::kPing, BytesOf(PingBody{0, 0}));
          break;
        }
        case wire::RecordType::kCredit:
          break;
        default:
          counted = true;
          if (link->state != LinkState::kReady) return Violation(peer, link, "data before HELLO");
          if (record->type == wire::RecordType::kLease) {
            OnLease(peer, link, record->body);
          } else if (record->type == wire::RecordType::kReturn) {
            OnReturn(peer, link, record->body);
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
      if (credits > kMostPool) return Violation(peer, link, absl::StrCat("credits for ", credits, " messages"));
      link->send_credits = static_cast<uint32_t>(credits);
      if (blocked) {
        WantRoom(link);
        MarkDirty(peer, link);
      }
    }
    if (counted) {
      ++link->owed_credits;
      MarkDirty(peer, link);
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

  void WantRoom(Link* link) {
    link->wants_room = true;
    room_wanted = true;
  }

  // At every Poll: AGAIN says no more than "try after the next poll", and no event need come before there is room.
  void TellRoom() {
    if (!room_wanted) return;
    room_wanted = false;
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

  // Only who was asked and had the time to answer: we may have slept ourselves, with all the others.
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
          Urgent(peer, link.get(), wire::RecordType::kPing, BytesOf(PingBody{1, 0}));
        }
        Arm(link->ping_outstanding ? DeadAt(*link) : PingAt(*link));
      } else if (link->state == LinkState::kLost) {
        if (link->lost_deadline == kNever) link->lost_deadline = now + kWordOfLoss;
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
  auto link = std::make_unique<Link>(&self.memory);
  link->spec = spec;
  link->nonce = RandomNumber();
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
  impl_->Abandon(peer, link, BPS_CANCELLED);
  impl_->transport.Disconnect(peer);
}

bool Endpoint::Ready(PeerId peer) const { return impl_->FindReady(peer) != nullptr; }

void Endpoint::Send(PeerId peer, wire::RecordType type, std::span<const std::byte> fixed,
                    std::span<const std::byte> payload) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return;  // OnPeerDown has told, or will
  impl_->Queue(peer, link, type, fixed, payload);
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
  // Records that wait would come behind these bytes, and others wait for them: a slot given back, what was written before.
  // With a record of its own they go along.
  if (link->owed || (size >= kBulk && record.fixed.empty() && link->dirty)) {
    if (!impl_->FlushLink(peer, link)) {
      impl_->WantRoom(link);
      return false;
    }
  }
  return impl_->WriteAnnounced(peer, link, from, size, to, immediate, user, record);
}

bool Endpoint::WriteSlot(PeerId peer, const bps_local& from, size_t size, const RemoteSlot& slot, uint64_t user,
                         const Announcement& record) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return false;
  const Lease* lease = Impl::LeaseOf(*link, wire::ImmediateSlot(slot.immediate));
  if (lease == nullptr) {
    impl_->Violation(peer, link,
                     absl::StrCat("slot ", wire::ImmediateSlot(slot.immediate), " is of none of its leases"));
    return false;
  }
  const bps_remote remote{lease->body.key, lease->body.key_size, slot.offset};
  return Write(peer, from, size, remote, slot.immediate, user, record);
}

size_t Endpoint::FreeSlots(PeerId peer) const {
  Link* link = impl_->FindReady(peer);
  return link == nullptr ? 0 : link->free_slots.size();
}

size_t Endpoint::TakenSlots(PeerId peer) const {
  Link* link = impl_->FindReady(peer);
  return link == nullptr ? 0 : link->lent_slots - std::min(link->lent_slots, link->free_slots.size());
}

std::optional<RemoteSlot> Endpoint::TakeSlot(PeerId peer) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr || link->free_slots.empty()) return std::nullopt;
  // The slot given back last is the one most likely still in the peer's cache.
  const RemoteSlot slot = link->free_slots.back();
  link->free_slots.pop_back();
  const uint32_t number = wire::ImmediateSlot(slot.immediate);
  Lease* lease = Impl::LeaseOf(*link, number);
  lease->taken[number - lease->body.first_slot] = true;
  return slot;
}

void Endpoint::GiveBack(PeerId peer, const RemoteSlot& slot) {
  Link* link = impl_->Find(peer);
  const uint32_t number = wire::ImmediateSlot(slot.immediate);
  Lease* lease = link == nullptr ? nullptr : Impl::LeaseOf(*link, number);
  if (lease == nullptr || !lease->taken[number - lease->body.first_slot]) return;
  lease->taken[number - lease->body.first_slot] = false;
  link->free_slots.push_back(slot);
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
      impl_->Refused(peer, link, code, what);
      return absl::OkStatus();
    }
    return absl::Status(static_cast<absl::StatusCode>(code),
                        absl::StrCat(what, " failed: the transport answered ", StatusCodeName(code)));
  }
  impl_->Queue(peer, link, wire::RecordType::kLease, BytesOf(body), {});
  return absl::OkStatus();
}

void Endpoint::Return(PeerId peer, uint32_t immediate) {
  Link* link = impl_->FindReady(peer);
  if (link == nullptr) return;
  link->returns.push_back(immediate);
  impl_->MarkDirty(peer, link);
}

bool Endpoint::Poll(Time now) {
  Impl& self = *impl_;
  if (self.closed) return false;
  self.now = now;
  bool worked = !self.ended.empty();
  self.TellEnded();  // before the fence may come
  self.Timers();
  self.Flush();
  std::array<bps_event, 64> events;
  const size_t count = self.transport.Poll(events.data(), events.size());
  for (size_t i = 0; i < count; ++i) self.Dispatch(events[i]);
  worked |= count > 0;
  self.TellRoom();
  if (!self.failing.empty()) {
    worked = true;
    self.TellFailures();
  }
  self.Flush();
  return worked;
}

Time Endpoint::NextTimer() const {
  // What the transport would not take is tried again soon; its descriptor need not say when it can.
  if (!impl_->failing.empty() || !impl_->ended.empty()) return impl_->now;
  if (!impl_->dirty.empty() || impl_->room_wanted) return std::min(impl_->next_timer, impl_->now + 1000000);
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
