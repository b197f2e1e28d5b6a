// datagram_peer.h - what is known of one peer of a DatagramTransport: its state, its packets, what comes from it.
//
//     CONNECTING -> CONNECTED -> DOWN
//          \____________\________/ \-> gone    after disconnect, and when the provider has given all its packets back
//
// There is no connection: what makes one is that each side has told the other a token (Hello), and drops what does not
// carry it. A peer that is gone and comes back has another token, so what is left of its former life means nothing.
//
// One side calls, that with the smaller nonce; the other speaks when it is spoken to (README.md: why). Any Hello may be
// lost, and then one is said again:
//
//     the caller has heard nothing yet           the caller, 10 to 200 ms later
//     the called one knows not whether it was heard    the called one, likewise; the caller answers each
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_PEER_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_PEER_H_

#include <rdma/fabric.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/libfabric/buffer_pool.h"
#include "transport_plugins/libfabric/datagram_wire.h"
#include "transport_plugins/libfabric/memory_domain.h"
#include "transport_plugins/libfabric/peer.h"
#include "transport_plugins/libfabric/region.h"
#include "transport_plugins/libfabric/sleeper.h"

namespace byteps::fabric {

// In front of every packet.
struct PacketHeader {
  enum Kind : uint32_t { kHello = 0x31484442, kMessage = 0x314d4442, kPiece = 0x31504442 };
  uint32_t kind;
  uint32_t sender;  // as the receiver calls it
  uint64_t token;   // that the receiver gave the sender; of a Hello: that of its own that the sender gives
  uint32_t number;  // of the message, counted by the sender; of the write that a piece belongs to
  uint32_t immediate;
};
static_assert(sizeof(PacketHeader) == 24);

struct HelloPacket {
  PacketHeader header;
  uint64_t job_key;
  uint64_t sender_nonce, receiver_nonce;
  uint32_t known;  // bits
  uint32_t tag;    // to be put into the immediates of writes to the sender
  // The sender has had the receiver's Hello; and it knows that the receiver has had one of its own.
  static constexpr uint32_t kHeard = 1, kSure = 2;
};
static_assert(sizeof(HelloPacket) == 56);

// A part of a write that travels as messages: its bytes follow.
struct PieceHeader {
  PacketHeader header;
  uint64_t key;
  uint64_t offset;  // in the region
  uint64_t total;   // bytes of the whole write; kGivenUp: there will be no more
};
inline constexpr uint64_t kGivenUp = ~uint64_t{0};
static_assert(sizeof(PieceHeader) == 48);

inline constexpr uint32_t kPacketSize = sizeof(PieceHeader) + kMaxMessage;

struct DatagramPeer;

struct Packet {
  fi_context2 scratch;  // of the provider; first
  enum class Kind { kReceive, kHello, kMessage, kPiece, kWrite } kind;
  DatagramPeer* peer;  // of what is sent
  uint32_t buffer;
  size_t size;
  uint64_t user;
  bool accepted;  // and its event not given yet
  // kReceive
  const BufferPool* pool;
  bool leased;
  bps_peer sender;
  // kWrite
  const void* data;
  Region* region;
  RemoteMemory target;
  uint32_t immediate;
};

// A write that is cut into pieces.
struct PiecedWrite {
  uint64_t user;
  const std::byte* data;
  size_t size, done;
  Region* region;  // may be NULL
  uint64_t key, offset;
  uint32_t number, immediate;
  bool given_up;  // the other side is told, if it has had a piece
};

// A write whose pieces arrive.
struct IncomingWrite {
  uint64_t missing;
  bool refused;
};

struct DatagramPeer {
  // `depth`: messages, and writes, under way at most; `pieces`: buffers for pieces of writes.
  DatagramPeer(const bps_connect_args& args, uint32_t depth, uint32_t pieces);
  DatagramPeer(const DatagramPeer&) = delete;
  DatagramPeer& operator=(const DatagramPeer&) = delete;

  // What has been said and heard until now, for people.
  std::string Greetings() const;
  // Of work under way or waiting.
  size_t busy() const { return messages_out + writes.size() + writes_out + pieces_out; }
  // The provider still has some of its packets.
  bool held() const { return with_provider != 0 || leases != 0; }

  const bps_peer number;
  const uint32_t local_id;  // how it calls us
  PeerState state = PeerState::kConnecting;
  std::string who;  // for logs: its name, and where it is
  fi_addr_t address = FI_ADDR_UNSPEC;
  uint64_t nonce = 0;                     // of its endpoint
  uint64_t own_token = 0, its_token = 0;  // what it must put into packets to us, what we must
  uint32_t own_tag = 0, its_tag = 0;      // likewise, in immediates

  // Outgoing.
  BufferPool buffers;
  std::vector<std::unique_ptr<Packet>> packets;
  std::vector<Packet*> free_messages, free_pieces;
  Packet hello{};
  bool calls = false;      // it is for us to say the first Hello
  bool hello_out = false;  // the provider has it
  bool heard = false;      // the peer has had one of ours
  bool owes_hello = false;
  Clock::time_point next_hello{}, patient_until{};  // until then a Hello may fail
  uint32_t hellos_given = 0, hellos_refused = 0, hellos_failed = 0;
  std::string hello_failure;
  std::deque<Packet*> waiting;  // what the provider has not taken, in order
  std::deque<PiecedWrite> writes;
  std::vector<Packet*> direct_writes;  // with the provider
  size_t messages_out = 0, writes_out = 0, pieces_out = 0, with_provider = 0;
  uint32_t next_message = 0, next_write = 0;

  // Incoming.
  uint32_t expected = 0;              // number of the next message
  std::map<uint32_t, Packet*> early;  // messages that came before their turn
  std::unordered_map<uint32_t, IncomingWrite> incoming;
  uint32_t leases = 0;

  // When this peer last did something, or had nothing to do.
  Clock::time_point progress{};
  // The peer is found broken, and is taken down at the end of the round: a BPS_* code, and why.
  int32_t failure_code = BPS_OK;
  std::string cause;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_PEER_H_
