// laned_transport.h - several ConnectedTransports as one: large writes leave, and land, on several cores at once.
//
//     std::vector<std::unique_ptr<ConnectedTransport>> lanes;  ...
//     LanedTransport transport(host, std::move(lanes), /*least=*/65536);
//
// One thread moves some 20 to 30 Gbit/s through TCP; a faster network needs several. Each lane is an endpoint of its
// own: its own connection to each peer, its own thread. Lane 0 is the owner's: it carries messages and small writes, on
// the owner's thread, so these are no slower than without lanes. A write of `least` bytes and more goes to the lane
// that has the fewest bytes under way to this peer; a tensor, which is many writes, is so striped over all of them.
//
// The address is those of the lanes, one after the other. Two sides use as many lanes as both have; a
// ConnectedTransport reads the first of the list, and is a side with one lane.
//
// The subtle parts:
//
// Keys.      A region has the same key on every lane, so that a write may come by any of them (Region::GrantTo).
// Hand-over. A write is accepted by the owner's thread, which counts what is under way, and posted by the lane's, which
//            so pays for the copy into the socket. It is in one place at a time: Lane::posts, the lane's transport, or
//            Lane::events.
// Failure.   A peer is down as soon as one of its lanes says so. The other ones are then disconnected, and PEER_DOWN is
//            said when the last operation of the last lane has ended. DISCONNECTED likewise: when all lanes are.
// Locks.     Lane::drive is held by the thread that calls the lane's transport; its thread makes way for the owner
//            (Lane::wanted). Lane::mail guards the two queues, and is never held for long.
//
// Threads: one at a time, and one of its own for each lane but the first.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LANED_TRANSPORT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LANED_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/common/loss_reasons.h"
#include "transport_plugins/libfabric/connected_transport.h"
#include "transport_plugins/libfabric/transport.h"

namespace byteps::fabric {

// What fits into an address beside those of other transports.
inline constexpr size_t kMostLanes = 4;

class LanedTransport : public Transport {
 public:
  // At least two lanes, at most kMostLanes. Throws std::system_error if there are no threads or descriptors for them.
  LanedTransport(const transports::Host& host, std::vector<std::unique_ptr<ConnectedTransport>> lanes, size_t least);
  ~LanedTransport() override;

  void Caps(bps_transport_caps* caps) const override { first().Caps(caps); }
  void WriteAddress(void* out, size_t* size) const override;
  int32_t Connect(const bps_connect_args& args, std::string* reason) override;
  int32_t Disconnect(bps_peer number) override;
  int32_t Reg(void* base, size_t size, bps_region** region, std::string* reason) override;
  void Unreg(bps_region* region) override;
  int32_t ExportKey(bps_region* region, bps_peer peer, void* key) override;
  int32_t PostSend(bps_peer number, const void* data, size_t size, uint64_t user) override;
  int32_t PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user) override;
  size_t Poll(bps_event* events, size_t capacity) override;
  void Release(uint64_t lease) override { first().Release(lease); }
  int WaitFd() const override { return epoll_; }
  int32_t Arm() override;

 private:
  // A write that its lane has not posted yet. `key`: as PostWrite got it.
  struct Post {
    bps_peer peer;
    bps_local from;
    size_t size;
    std::vector<std::byte> key;
    uint64_t offset;
    uint32_t immediate;
    uint64_t user;
  };

  struct Lane {
    size_t index = 0;
    std::unique_ptr<ConnectedTransport> transport;
    std::mutex drive;
    std::atomic<int> wanted{0};  // others that wait for `drive`
    std::mutex mail;
    std::deque<Post> posts;
    std::vector<bps_event> events;
    transports::LossReasons reasons;  // of these
    bool refused = false;             // guarded by drive: the transport has not taken all posts
    bool asleep = false;              // guarded by mail
    bool stop = false;                // guarded by mail
    int wake = -1;                    // eventfd
    std::thread thread;
  };

  enum class LaneState : uint8_t { kUp, kDown, kDisconnecting, kGone };

  struct LanedPeer {
    size_t lanes = 1;
    LaneState state[kMostLanes] = {};
    uint32_t under_way[kMostLanes] = {};  // writes
    uint64_t bytes[kMostLanes] = {};      // of those writes
    bool down = false;                    // refused from here on
    bool told = false;                    // PEER_DOWN
    bool leaving = false;                 // Disconnect was called
    int32_t code = BPS_OK;
    std::string cause;  // of the first lane that was down
  };

  struct LanedRegion {
    std::vector<bps_region*> regions;       // by lane
    std::unordered_set<bps_peer> shown_to;  // numbers of peers are never used again
  };

  // A write that has not ended.
  struct Burden {
    bps_peer peer;
    size_t lane;
    uint64_t bytes;
    uint64_t user;
  };

  ConnectedTransport& first() const { return *lanes_.front()->transport; }
  LanedPeer* FindPeer(bps_peer number);
  size_t ChooseLane(const LanedPeer& peer) const;

  // The lanes' own threads.
  void Run(Lane* lane);
  bool RunOnce(Lane* lane);
  void Sleep(Lane* lane);
  void Wake(Lane* lane);
  void Stop();
  // Calls `body` with the lane's transport.
  template <typename Body>
  auto With(size_t lane, const Body& body);
  // Takes posts out of the lane's queue that have not begun and ends them. Its `drive` is held.
  template <typename Which>
  static void EndPosts(Lane* lane, const Which& which);
  // Disconnects the peer on one lane.
  void LeaveLane(bps_peer number, LanedPeer* peer, size_t index);
  void UnregAll(const LanedRegion& region);

  void Fetch();
  void Handle(size_t lane, const bps_event& event);
  void TellEnd(bps_peer number, LanedPeer* peer);

  const size_t least_;
  uint32_t depth_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  int epoll_ = -1, ready_ = -1;
  std::atomic<bool> armed_{false};  // the owner sleeps, or is about to
  std::unordered_map<bps_peer, LanedPeer> peers_;
  std::unordered_map<LanedRegion*, std::unique_ptr<LanedRegion>> regions_;
  // Writes that have not ended, by the number they travel under, which is unique: an owner's `user` need not be.
  std::unordered_map<uint64_t, Burden> burdens_;
  uint64_t next_burden_ = 1;
  std::deque<bps_event> events_;
  transports::LossReasons reasons_;
  std::vector<bps_event> fetched_;
  transports::LossReasons fetched_reasons_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LANED_TRANSPORT_H_
