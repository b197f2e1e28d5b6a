// peer.h - one other endpoint: the two channels, what is under way in them, and whether it lives.
//
//     Peer peer(&context, number, address, called_back_as, Channel::Create(&reason));
//     peer.Connected(socket, bell, their_channel, remote);   // when both have greeted each other
//     peer.Send(...); peer.Write(...); peer.Read(...);        // also before that: it waits in our own channel
//     peer.Progress();                                        // events go to context->events
//
// Who does what: a write is carried out by its *receiver*, who fetches the payload from the memory of the writer into
// its own. So nothing ever lands in memory that was taken back: its owner is the one that writes it. Where the receiver
// may not read the writer's memory, it asks for the payload to be brought to it in chunks (Request::kStaged). A read is
// done by the side that posted it, or else by chunks as well.
//
// Threads: the transport's.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_PEER_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_PEER_H_

#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/shm/address.h"
#include "transport_plugins/shm/channel.h"
#include "transport_plugins/shm/control_socket.h"
#include "transport_plugins/shm/event_queue.h"
#include "transport_plugins/shm/host.h"
#include "transport_plugins/shm/region.h"
#include "transport_plugins/shm/remote.h"
#include "transport_plugins/shm/unique_fd.h"

namespace byteps::shm {

using Clock = std::chrono::steady_clock;

// What the peers of one transport share.
struct Context {
  explicit Context(const Host& h) : host(h) {}
  Host host;
  RegionTable regions;
  EventQueue events;
  bool refusal_logged = false;
};

enum class PeerState {
  kCalling,   // it must be called, or will call
  kGreeting,  // called; its greeting has not come
  kConnected,
  kDown,
  kFencing,  // disconnected; may still hold memory of ours
};

class Peer {
 public:
  Peer(Context* context, const bps_connect_args& args, const Address& address, std::shared_ptr<Channel> outgoing);

  bps_peer number() const { return number_; }
  // For logs: as the host names it, else by its number and, once it is known, its process.
  std::string Who() const;
  const Address& address() const { return address_; }
  uint32_t called() const { return called_; }  // what it calls us
  Channel& outgoing() const { return *outgoing_; }
  const std::shared_ptr<Remote>& remote() const { return remote_; }
  bool usable() const { return state == PeerState::kCalling || state == PeerState::kGreeting || connected(); }
  bool connected() const { return state == PeerState::kConnected; }

  // Its memory cannot be read: payloads are brought from now on. Says so, once for a transport.
  void OnRefused(int error);

  void Connected(UniqueFd bell, std::shared_ptr<Channel> incoming, std::shared_ptr<Remote> remote);

  // Posts: BPS_OK or AGAIN. Arguments have been checked.
  int32_t Send(const void* data, size_t size, uint64_t user);
  int32_t Write(Region* region, void* base, size_t size, const Key& key, uint64_t offset, uint32_t immediate,
                uint64_t user);
  int32_t Read(Region* region, void* base, size_t size, const Key& key, uint64_t offset, uint64_t user);

  // Some of what there is to do.
  void Progress();
  // Is there something to do that is not announced? Call Sleep() first.
  bool Quiet() const;
  void Sleep();
  void Awake();

  void Release(uint32_t slot);
  size_t leases() const { return leased_.count(); }

  // Ends the operations that use local memory `region`; or all.
  void Cancel(const Region* region);
  void EndAll(int32_t code);

  // Takes a right away; how many threads of the peer are using it just now.
  void Revoke(const Grant& grant);
  uint64_t Users(const Grant& grant) const;
  // The same for all rights.
  void RevokeAll();
  bool UsesLedger() const;
  uint32_t NewLedgerEntry(uint64_t secret);
  void FreeLedgerEntry(uint32_t entry);

  // Does it owe us anything, and a number that changes when it does something about it.
  bool Busy() const;
  uint64_t ProgressCount() const;

  // Says that it sent what it must not; empty: it did not.
  const std::string& violation() const { return violation_; }
  bool process_ended() const { return process_ended_; }

  // The transport's notes.
  PeerState state = PeerState::kCalling;
  UniqueFd socket;
  std::deque<std::pair<Control, int>> unsent;  // controls, with a descriptor or -1, that the socket did not take
  int32_t failure_code = BPS_OK;
  std::string cause;
  uint64_t progress_count = 0;
  Clock::time_point progress{};
  Clock::time_point fence_deadline{};
  bool killed = false;
  std::vector<uint64_t> writing;  // disconnected: regions of memory files that it was in the middle of writing
  bool unmapped_told = false;     // that memory of its cannot be mapped
  bool tries_again = false;       // it was refused our memory, and has heard that it may be let in now

 private:
  // A write or a read of ours that has a request in our channel.
  struct Operation {
    uint64_t user = 0;
    const Region* region = nullptr;
    std::byte* base = nullptr;
    uint64_t size = 0;
    uint64_t done = 0;
    uint32_t kind = 0;
    uint32_t sequence = 0;
    bool ended = false;  // its event has been given
    bool feeding = false;
  };
  // A write of the peer.
  struct Pull {
    uint32_t index;
    uint32_t sequence;
    uint32_t immediate;
    bool staged;
    uint64_t address, shared_region, shared_offset;
    uint64_t size, offset, done;
    Key key;
  };
  // A payload that goes out by chunks: of a write of ours, or the answer to a read of the peer.
  struct Feed {
    uint32_t kind;
    uint32_t index;
    uint32_t sequence;
    uint64_t size, offset, done;
    Key key;
  };
  // A read that this side carries out itself.
  struct LocalRead {
    uint64_t user;
    const Region* region;
    std::byte* base;
    uint64_t size, offset, done;
    Key key;
  };

  int32_t Post(uint32_t kind, Region* region, void* base, size_t size, const Key& key, uint64_t offset,
               uint32_t immediate, uint64_t user);
  void Describe(Descriptor::Kind kind, uint32_t index, uint32_t size);
  void Wake();
  void CollectReturns();
  void Receive();
  void TakeRequest(uint32_t index);
  void PullSome();
  void FetchChunks();
  void FeedSome();
  void ReadSome();
  void Reap();
  Region* Target(const Key& key, uint64_t offset, uint64_t size) const;
  // Ends a request of the peer. False: it was cancelled meanwhile.
  bool Settle(uint32_t index, uint32_t from, Request::State to, int32_t code);
  void Stage(Pull* pull);
  void Landed(const Pull& pull);
  void EndOperation(uint32_t index, int32_t code);
  void Violation(const std::string& what);

  std::pmr::unsynchronized_pool_resource memory_;  // of the queues; first
  Context* const context_;
  const bps_peer number_;
  const std::string name_;  // "": not known
  const Address address_;
  const uint32_t called_;
  std::shared_ptr<Channel> outgoing_;
  std::shared_ptr<Channel> incoming_;
  std::shared_ptr<Remote> remote_;
  UniqueFd bell_;
  std::string violation_;
  bool process_ended_ = false;

  // Of our channel.
  uint32_t head_ = 0;
  uint32_t returned_ = 0;
  uint32_t completed_ = 0;
  uint32_t staged_ = 0;
  uint32_t sequence_ = 0;
  bool room_wanted_ = false;
  bool rescan_ = false;
  std::vector<uint32_t> free_slots_;
  std::bitset<kSlots> used_slots_;
  std::vector<Operation> operations_;
  std::vector<uint32_t> free_operations_;
  std::vector<uint32_t> outstanding_;
  std::pmr::deque<Feed> feeds_{&memory_};
  std::vector<uint32_t> free_entries_;
  uint32_t next_entry_ = 0;

  // Of its channel.
  uint32_t tail_ = 0;
  uint32_t fetched_ = 0;
  uint32_t gave_back_ = 0;
  uint32_t settled_ = 0;
  std::bitset<kSlots> leased_;
  std::pmr::deque<Pull> pulls_{&memory_};
  std::pmr::deque<LocalRead> reads_{&memory_};
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_PEER_H_
