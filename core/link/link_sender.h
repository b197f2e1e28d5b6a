// link_sender.h - what leaves on the links of an Endpoint: records, coalesced into messages, and writes.
//
//     LinkSender sender(&transport, log, &sink);
//     sender.Queue(peer, link, wire::RecordType::kPush, fixed, payload);
//     sender.Write(peer, link, from, size, to, immediate, user, record);
//     sender.Flush();                                  // as far as transport and credits allow
//
// The rules (endpoint.h has the reasons): what waits goes before a large write that is posted later, and so does the
// record that tells of it; a write that the transport does not take once its record has left is owed, and goes first.
//
// Threads: none; driven by the thread that drives the Endpoint.
// Ownership: transport, log and sink outlive it; the links are the Endpoint's.
#ifndef BYTEPS_CORE_LINK_LINK_SENDER_H_
#define BYTEPS_CORE_LINK_LINK_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/link/link.h"
#include "core/plugin/transport.h"
#include "core/wire/wire.h"

namespace byteps {

// The record that tells the peer of a write. Small ones leave with the records of other writes, behind theirs.
struct Announcement {
  wire::RecordType type = wire::RecordType::kPush;
  std::span<const std::byte> fixed;  // copied; at most Endpoint::MaxRecord(). Empty: nothing is told
};

class LinkSenderSink {
 public:
  virtual ~LinkSenderSink() = default;
  // nullptr: it is gone.
  virtual Link* FindLink(PeerId peer) = 0;
  // The transport has answered with an error to `what` was to be done.
  virtual void OnRefused(PeerId peer, Link* link, int32_t code, const std::string& what) = 0;
  // A write that was accepted here ends, and the transport never had it.
  virtual void OnWriteDropped(PeerId peer, uint64_t user, int32_t code) = 0;
};

class LinkSender {
 public:
  LinkSender(Transport* transport, Logger* log, LinkSenderSink* sink)
      : transport_(transport), log_(log), sink_(sink), caps_(transport->caps()) {}

  // A record that goes without credits: HELLO, PING, kCredit.
  void Urgent(PeerId peer, Link* link, wire::RecordType type, std::span<const std::byte> body);
  // Any other.
  void Queue(PeerId peer, Link* link, wire::RecordType type, std::span<const std::byte> fixed,
             std::span<const std::byte> payload);
  // True: accepted. False: neither the write nor its record is done, because the transport takes nothing now.
  bool Write(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
             uint64_t user, const Announcement& record);
  // Drops what waits; an owed write ends with this code.
  void Abandon(PeerId peer, Link* link, int32_t code);

  // The link has something to send, or may again.
  void MarkDirty(PeerId peer, Link* link);
  // True if there was anything to do.
  bool Flush();
  // Does anything wait for a transport that did not take it?
  bool waiting() const { return !dirty_.empty(); }

  // What was held back is told of room by the next Poll.
  void WantRoom(Link* link);
  bool room_wanted() const { return room_wanted_; }
  bool TakeRoomWanted() { return std::exchange(room_wanted_, false); }

  std::pmr::memory_resource* memory() { return &memory_; }

 private:
  // A write of so many bytes keeps what comes behind it waiting for longer than a message of its own takes. No part
  // that a link's rate has cut is smaller (server/membership/placement.h): records behind such writes cost a tenth of
  // the links' time.
  static constexpr size_t kBulk = size_t{16} << 10;

  bool Post(PeerId peer, Link* link, MessageBuilder* message);
  void MessageLeft(Link* link, const MessageBuilder& message);
  bool FlushLink(PeerId peer, Link* link);
  int32_t PostTogether(PeerId peer, Link* link);
  void PopMessage(Link* link);
  bool FlushOwed(PeerId peer, Link* link);
  bool PostWrite(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                 uint64_t user);
  bool WriteAnnounced(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to,
                      uint32_t immediate, uint64_t user, const Announcement& record);
  bool FlushRecords(PeerId peer, Link* link, size_t most);
  void FlushReturns(PeerId peer, Link* link);

  Transport* const transport_;
  Logger* const log_;
  LinkSenderSink* const sink_;
  const bps_transport_caps caps_;
  // Of messages that wait: used again and again.
  std::pmr::unsynchronized_pool_resource memory_{{.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 16}};
  std::vector<PeerId> dirty_;
  std::vector<PeerId> flushing_;  // of Flush: kept for its memory
  bool room_wanted_ = false;      // by some link: a write was answered with AGAIN, or credits came for a full outbox
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_LINK_SENDER_H_
