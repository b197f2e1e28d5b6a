// peer.h - the connection to one peer: its state, its buffers, what is under way to it.
//
//     CONNECTING -> CONNECTED -> DOWN          a peer that died, or could not be reached
//          \____________\________/ \-> gone    after disconnect (the object is deleted)
//
// Operations are handed to the provider in the order they were posted. Those it does not take yet wait in `waiting`;
// waiting and taken ones together are at most `depth`, so neither side of the provider's queue grows without limit.
//
// Silent sends (Provider::silent_sends). A message is copied before it is posted, so its owner need not hear when it
// has left. On a connection on which nothing else is under way it is sent without a completion, and its end is told as
// soon as the provider has taken it. Its buffer is free when an operation behind it ends, which every kMostSilent-th
// message says of itself at the latest. A connection that carries more than that is watched as ever: what is under way
// there has an end.
//
// A provider whose writes outlive their registration (Provider::write_outlives_registration) gets an announcement ahead
// of each write, on the same stream. The receiver counts them: a write that was announced, and whose immediate is not
// here, is under way. That is what makes unreg sound; see Transport::Unreg. Where a message goes ahead of the write
// anyway, it carries the announcement: one packet less.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PEER_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PEER_H_

#include <rdma/fabric.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/libfabric/buffer_pool.h"
#include "transport_plugins/libfabric/endpoint.h"
#include "transport_plugins/libfabric/region.h"

namespace byteps::fabric {

inline constexpr uint32_t kMaxMessage = 16384;
inline constexpr size_t kMostSilent = 32;  // far below the depth: their buffers are not free meanwhile

// In front of every message.
struct MessageHeader {
  enum Kind : uint32_t { kMessage = 0x31534742, kAnnouncement = 0x31574742, kAnnouncingMessage = 0x31424742 };
  uint32_t kind;
  uint32_t sender;  // as the receiver calls it
};
static_assert(sizeof(MessageHeader) == 8);

// A message that announces a write has it in front.
struct Announcement {
  MessageHeader header;
  uint64_t key;
};
static_assert(sizeof(Announcement) == 16);

enum class PeerState { kConnecting, kConnected, kDown };
const char* Name(PeerState state);

class Peer;

// What comes back from the provider as the context of a completion.
struct Completion {
  enum class Kind { kReceive, kSend, kWrite };
  fi_context2 scratch;  // of the provider; first
  Kind kind;
  Peer* peer;
};

struct Operation : Completion {
  uint64_t user;
  // kSend: a buffer of the send pool; kWrite: the local memory, and in the buffer the message that announces it, if
  // any.
  uint32_t buffer;
  size_t message_size;  // with what is in front of it; 0: none
  const void* data;
  size_t size;
  Region* region;  // kWrite, may be NULL
  uint64_t remote_address, remote_key, immediate;
  bool announced;
  bool taken;         // by the provider
  bool silent;        // taken, and told; there will be no completion but of a failure
  uint64_t order;     // among those that are taken
  uint32_t position;  // in the list of those that are taken
};

struct Receive : Completion {
  uint32_t buffer;
  bool leased;
};

class Peer {
  std::pmr::unsynchronized_pool_resource memory_;  // of the queues; first

 public:
  Peer(Endpoint& endpoint, const bps_connect_args& args, uint32_t depth);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bps_peer number() const { return number_; }
  uint32_t local_id() const { return local_id_; }  // how it calls us
  PeerState state() const { return state_; }

  // 0 or a libfabric code.
  int RegisterBuffers();
  // Takes the connection and posts all receives to it.
  int Adopt(FidPtr<fid_ep> connection);
  bool attached() const { return connection_ != nullptr; }
  fid_ep* connection() const { return connection_.get(); }
  void Connected() { state_ = PeerState::kConnected; }
  // Closes the connection: from here on nothing of this peer lands. Completions that the provider has queued may still
  // be fetched; afterwards call Abandon.
  void CloseConnection() { connection_.reset(); }
  // Ends the life of the connection; what is still under way is handed to `ended` in the order it was posted.
  std::vector<Operation*> Abandon();

  // nullptr if as much is under way as may be.
  Operation* NewOperation(Completion::Kind kind, uint64_t user);
  // Appends `operation` and gives the provider what it takes.
  void Enqueue(Operation* operation) { waiting_.push_back(operation); }
  // Gives the provider a write and the message in its buffer, on a connection on which nothing waits. -FI_EAGAIN: it
  // takes nothing now, and the operation is none any more.
  int GiveAnnounced(Operation* operation);
  // Gives the provider what it takes of what waits; appends those whose end may be told now. 0, or the code of the
  // operation that it refuses for good.
  int Flush(std::vector<Operation*>* told);
  // The operation has ended: forgets it.
  void Retire(Operation* operation);
  // Operations that read from `region` and wait: taken out of the queue.
  std::vector<Operation*> TakeWaiting(const Region* region);
  bool Uses(const Region* region) const;  // an operation that the provider has taken

  std::byte* send_buffer(uint32_t index) const { return sends_.at(index); }
  std::byte* receive_buffer(uint32_t index) const { return receives_.at(index); }
  // Gives the buffer to the provider again.
  int Repost(Receive* receive);
  // nullptr if there is none of that number.
  Receive* receive(uint32_t index) { return index < receive_.size() ? &receive_[index] : nullptr; }

  size_t waiting() const { return waiting_.size(); }
  size_t busy() const { return waiting_.size() + taken_.size(); }
  uint32_t leases = 0;

  // Writes of this peer under way to this side: the keys they use, in order.
  std::pmr::deque<uint64_t> incoming{&memory_};

  // When this peer last did something, or had nothing to do.
  Clock::time_point progress{};
  // The peer is found broken, and is taken down at the end of the round: a BPS_* code, and why.
  int32_t failure_code = BPS_OK;
  std::string cause;

  uint64_t nonce = 0;  // of its endpoint
  std::string who;     // for logs: its name, and where it is

 private:
  int Give(Operation* operation);
  int Announce(Operation* operation);
  void Taken(Operation* operation);
  int Send(Operation* operation);
  int Write(Operation* operation);
  // All that was sent silently before `order` has left.
  void FreeSilent(uint64_t order);

  Endpoint& endpoint_;
  const bps_peer number_;
  const uint32_t local_id_, depth_;
  PeerState state_ = PeerState::kConnecting;
  BufferPool sends_, receives_;
  std::vector<Receive> receive_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> idle_;
  std::pmr::deque<Operation*> waiting_{&memory_};
  std::vector<Operation*> taken_;
  std::pmr::deque<Operation*> silent_{&memory_};
  uint64_t order_ = 0;
  FidPtr<fid_ep> connection_;  // goes first
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PEER_H_
