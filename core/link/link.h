// link.h - the state of one connection of an Endpoint to one peer.
//
// The states:
//
//     greeting --> ready --> lost --> down --> removing
//         \___________\_____________/ /
//          \_________________________/
//   greeting   HELLOs go both ways until both sides have proven who they are
//   ready      data may go
//   lost       the transport refuses it; its event, or a deadline, tells why
//   down       failed; OnPeerDown tells it, or has
//   removing   the transport is letting it go
//
// Threads: none.
#ifndef BYTEPS_CORE_LINK_LINK_H_
#define BYTEPS_CORE_LINK_LINK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <optional>
#include <vector>

#include "abi/transport.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/link/peer_spec.h"
#include "core/link/slot_leases.h"
#include "core/wire/message.h"
#include "core/wire/wire.h"

namespace byteps {

enum class LinkState { kGreeting, kReady, kLost, kDown, kRemoving };

// A write whose record has left, for a transport that did not take it.
struct OwedWrite {
  bps_local from;
  size_t size;
  std::array<uint8_t, wire::kMaxKey> key;
  size_t key_size;
  uint64_t offset;
  uint32_t immediate;
  uint64_t user;

  bps_remote to() const { return {key.data(), key_size, offset}; }
};

struct Link {
  explicit Link(std::pmr::memory_resource* memory) : outbox(memory), urgent(memory) {}

  PeerSpec spec;
  LinkState state = LinkState::kGreeting;

  // HELLO.
  Time begun = 0;
  uint64_t nonce = 0;
  bool accepted = false;       // the peer's HELLO was proven
  bool answered = false;       // the peer has accepted ours
  bool told_accepted = false;  // we have told it so
  Time hello_wait = 0;
  Time hello_at = 0;
  Time hello_deadline = 0;

  // kLost.
  Time lost_deadline = kNever;
  absl::Status refusal;  // the cause, if no better one comes

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
  bool dirty = false;  // listed with its sender
  bool wants_room = false;
  std::optional<OwedWrite> owed;  // goes before any other write

  SlotLeases leases;              // of the peer, to us
  std::vector<uint32_t> returns;  // immediates to be announced with kReturn
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_LINK_H_
