// endpoint.h - one transport with its links: HELLO, credits, coalesced records, landing slots.
//
// Engine (worker) and Reducer (server) speak the data-plane protocol of core/wire/wire.h through an Endpoint, which
// hides what both sides do alike:
//
//     Endpoint endpoint(std::move(transport), options, &handler);
//     endpoint.AddPeer(now, spec);             // HELLO is exchanged; handler.OnReady(peer) follows
//     endpoint.Send(peer, RecordType::kPush, header_bytes, payload_bytes);
//     endpoint.Write(peer, local, size, remote, immediate, user, {RecordType::kPush, header_bytes});
//     endpoint.Poll(now);                      // progress: events go to the handler, outboxes are flushed
//
// The subtle parts:
//
// Threads.    None: a step function. Driven by one thread at a time, time comes in as `now` (nanoseconds).
// Records.    Send never fails for lack of room: records wait in the peer's outbox until the transport and the peer's
//             receive pool (credits) can take them; a message carries as many as fit. An outbox is bounded by what its
//             owner has in flight: every record belongs to a partition, a lease or a round.
//             What waits goes before a large write that is posted later: behind it, it would come late by the time of
//             all its bytes, and what needs it (for a slot to write into, for a payload to fold) would stand still.
// Writes.     So does the record that tells of a large write, which is why Write takes both. A record cannot be taken
//             back: a write that the transport does not take once its record has left waits in the link (one at most;
//             meanwhile the link takes no other), is posted as soon as it can be, and ends as every write does.
// Credits.    A peer may have `receive_pool` messages unreleased here. Returned credits ride on every message
//             (MessageHeader.credits); a kCredit record goes alone when half the pool waits to be returned. Two
//             messages of every pool are kept for kCredit, so that two full outboxes cannot block each other.
// Slots.      Lend() leases slots of registered memory to one peer (kLease). The peer takes them by TakeSlot(), writes,
//             and names the immediate in its record; Return() lends a slot again under its next generation (kReturn).
// Landing.    An arriving immediate is matched with its record by the lender of the slot: OnLanded tells slot and
//             generation; core/wire/landing_table.h keeps the two halves until both are there.
// Callbacks.  The handler runs inside Poll (or inside the call that caused it, for errors found at once: never;
//             errors are always delivered by a later Poll). It may call any function of the endpoint except Poll.
#ifndef BYTEPS_CORE_LINK_ENDPOINT_H_
#define BYTEPS_CORE_LINK_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/link/link_sender.h"
#include "core/link/peer_spec.h"
#include "core/link/slot_leases.h"
#include "core/plugin/transport.h"
#include "core/wire/wire.h"

namespace byteps {

// The grace period for a lost peer's own error: a transport that refuses a lost peer tells of the loss by its next
// polls, and a member whose memory is gone gives up, or ends. Shorter than the wait for ERROR or for an end record of
// ours (docs/architecture.md, "One host").
inline constexpr Time kLossGrace = kSecond;

class EndpointHandler {
 public:
  virtual ~EndpointHandler() = default;
  // Both HELLOs are exchanged and proven.
  virtual void OnReady(PeerId peer) = 0;
  // One record other than those the endpoint handles itself (HELLO, LEASE, RETURN, PING, CREDIT). `body` is what
  // follows the RecordHeader, payload and padding included; valid during the call.
  virtual void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) = 0;
  // A write with this immediate has landed here; all its bytes are visible. The sender is the one the slot was lent to.
  virtual void OnLanded(uint32_t immediate) = 0;
  // The Write with this `user` gave its local memory back.
  virtual void OnWritten(PeerId peer, uint64_t user, int32_t code) = 0;
  // More slots of this peer can be taken, or its outbox became short again: what was held back may go.
  virtual void OnRoom(PeerId peer) = 0;
  // The peer is lost (transport, HELLO refused or not answered, protocol violation, silence); said once. Nothing more
  // comes from it. Slots lent to it are not reusable before RemovePeer has ended.
  virtual void OnPeerDown(PeerId peer, const absl::Status& why) = 0;
  // RemovePeer has ended: the fence stands; the peer's slots and exported regions may be reused.
  virtual void OnRemoved(PeerId peer) = 0;
};

struct EndpointOptions {
  uint64_t session = 0;     // data of other sessions is refused per peer: see PeerSpec
  Time hello_interval = 0;  // between repeated HELLOs
  Time hello_timeout = 0;
  // To a peer we have heard nothing from; a third of peer_timeout at most. 0: none, and silence is no death then.
  Time ping_interval = 0;
  Time peer_timeout = 0;  // silence, though we have asked, that means death; 0: none does
  std::string token;      // empty: none
};

class Endpoint {
 public:
  Endpoint(Transport transport, EndpointOptions options, EndpointHandler* handler, Logger* log);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const bps_transport_caps& caps() const;
  Transport& transport();

  // Connects and starts the exchange of HELLOs.
  absl::Status AddPeer(Time now, const PeerSpec& spec);
  // Forgets a peer: what waits for it is dropped, its outstanding writes end with CANCELLED, OnRemoved follows.
  void RemovePeer(PeerId peer);

  bool Ready(PeerId peer) const;

  // Queues one record: fixed part and payload are copied (size of both together at most MaxRecord()).
  void Send(PeerId peer, wire::RecordType type, std::span<const std::byte> fixed,
            std::span<const std::byte> payload = {});
  size_t MaxRecord() const;
  // Bytes that wait in the peer's outbox.
  size_t Queued(PeerId peer) const;
  // Nothing waits in any peer's outbox, nor for a transport that did not take it.
  bool Sent() const;

  // Writes, and tells the peer of it. True: accepted, OnWritten follows. False: neither is done, because the transport
  // takes nothing now; OnRoom follows.
  bool Write(PeerId peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate, uint64_t user,
             const Announcement& record = {});
  // The same into a slot taken before.
  bool WriteSlot(PeerId peer, const bps_local& from, size_t size, const RemoteSlot& slot, uint64_t user,
                 const Announcement& record = {});

  // Slots of the peer that may be written now.
  size_t FreeSlots(PeerId peer) const;
  // Slots of the peer that were taken, and that it has not given back.
  size_t TakenSlots(PeerId peer) const;
  std::optional<RemoteSlot> TakeSlot(PeerId peer);
  void GiveBack(PeerId peer, const RemoteSlot& slot);  // taken, but not used

  // Lends `memory` (of `region`, at `offset` in it) to the peer as slots of slot_bytes, numbered from first_slot. That
  // the peer is lost is no error here: OnPeerDown tells it, with the cause.
  absl::Status Lend(PeerId peer, bps_region* region, uint64_t offset, uint64_t slot_bytes, uint32_t first_slot,
                    uint32_t slots);
  // Lends one slot again, with this immediate (slot and its next generation). Returns coalesce.
  void Return(PeerId peer, uint32_t immediate);

  // One round of progress: transport events, timers, outboxes. True if anything happened.
  bool Poll(Time now);
  // When Poll must be called although no descriptor is readable; INT64_MAX: never.
  Time NextTimer() const;
  // -1 without BPS_TRANSPORT_WAIT_FD.
  int WaitFd();
  // True: it is safe to block on WaitFd.
  bool Arm();

  // Ends everything; no callbacks any more.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_ENDPOINT_H_
