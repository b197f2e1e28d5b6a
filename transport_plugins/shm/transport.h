// transport.h - one endpoint of the shm transport: the verbs of abi/transport.h, progress, and the end of peers.
//
//     std::unique_ptr<Transport> transport = Transport::Open(host, args, &reason);
//
// Every function is the one of the same name in the ABI. See README.md for how it works and for the fence.
//
// Threads: CopyFrom, CopyTo and MapRemote's result on any thread, all else on one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_TRANSPORT_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/common/loss_reasons.h"
#include "transport_plugins/common/refusal_log.h"
#include "transport_plugins/shm/address.h"
#include "transport_plugins/shm/control_socket.h"
#include "transport_plugins/shm/peer.h"
#include "transport_plugins/shm/region.h"
#include "transport_plugins/shm/remote.h"
#include "transport_plugins/shm/sleeper.h"

namespace byteps::shm {

class Transport {
 public:
  static bool Probe(std::string* reason);
  static std::unique_ptr<Transport> Open(const Host& host, const bps_transport_open_args& args, std::string* reason);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const Host& host() const { return context_.host; }

  void Caps(bps_transport_caps* caps) const;
  void WriteAddress(void* out, size_t* size) const;
  int32_t Connect(const bps_connect_args& args, std::string* reason);
  int32_t Disconnect(bps_peer number);

  int32_t Reg(void* base, size_t size, Region** region, std::string* reason);
  int32_t Allocate(size_t size, Region** region, void** base, std::string* reason);
  int32_t RegShared(void* base, size_t size, int fd, Region** region, std::string* reason);
  void Unreg(Region* region);
  int32_t ExportKey(Region* region, bps_peer number, void* key);

  int32_t PostSend(bps_peer number, const void* data, size_t size, uint64_t user);
  int32_t PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user);
  int32_t PostRead(bps_peer number, const bps_local& to, size_t size, const bps_remote& from, uint64_t user);
  int32_t MapRemote(bps_peer number, const bps_remote& remote, size_t size, void** base);
  void UnmapRemote(bps_peer number, const bps_remote& remote);
  int32_t BeginWrite(bps_peer number, const bps_remote& remote, size_t size, void** base);
  void EndWrite(bps_peer number, const bps_remote& remote);
  int32_t CopyFrom(bps_peer number, const bps_remote& from, void* to, size_t size);
  int32_t CopyTo(bps_peer number, const bps_remote& to, const void* from, size_t size);

  size_t Poll(bps_event* events, size_t capacity);
  void Release(uint64_t lease);
  int WaitFd() const { return sleeper_.fd(); }
  int32_t Arm();

 private:
  // A caller that connect() has not named yet.
  struct Newcomer {
    UniqueFd socket;
    Caller caller;
    Clock::time_point since;
    std::optional<Packet> hello;  // of this job; until then it may be a stranger
  };

  Transport(const Host& host, uint64_t job_key);

  Peer* Find(bps_peer number) const;
  Peer* FindToPost(bps_peer number);  // nullptr: it is lost
  std::shared_ptr<Remote> FindRemote(bps_peer number);

  void Progress();
  void LookAtSockets();
  void Accept();
  void ReadGreeting(uint32_t newcomer);
  bool IsOurs(const Newcomer& newcomer) const;
  // False: there is none to be had.
  bool MakeRoom(bool ours);
  bool Evict();
  void ExpireNewcomers();
  void Refuse(uint32_t newcomer, const std::string& why);
  bool Meet(Packet* hello, UniqueFd* socket);
  void Call(Peer* peer);
  void CallOff(Peer* peer);
  bool KeepSpare();
  Control Greeting(const Peer& peer) const;
  void Establish(Peer* peer, Packet* hello);
  void ReadSocket(Peer* peer);
  void OnControl(Peer* peer, Packet* packet);
  void ProbeMemory(Peer* peer, uint64_t address);
  void Say(Peer* peer, const Control& control, int descriptor = -1);
  void FlushUnsent(Peer* peer);
  void Show(Region* region, Peer* peer);

  void MarkFailed(Peer* peer, int32_t code, const std::string& cause);
  void FailOutOfDescriptors(Peer* peer);
  void FailCallersOutOfDescriptors();
  bool WatchListener();
  void ReportFailedPeers();
  void TakeDown(Peer* peer, int32_t code);
  void CheckTime();
  void CheckFences();
  bool StillUses(const Peer& peer) const;
  void DetachFrom(const Peer& peer, const std::string& who);
  void Withdraw(Region* region);
  void EndFence(Peer* peer);

  Context context_;
  const uint64_t job_key_;
  const Address address_;
  const std::string place_;
  const std::chrono::nanoseconds peer_timeout_;
  bool process_memory_ = false;
  std::optional<bool> permitted_;  // by prctl, if it was tried; see kReach
  Sleeper sleeper_;
  UniqueFd listener_;
  bool listening_ = false;  // it is watched
  UniqueFd spare_;          // so that there is one to call with and say that there are none

  std::map<bps_peer, std::unique_ptr<Peer>> peers_;
  std::map<bps_peer, std::unique_ptr<Peer>> departed_;  // whose messages are still on loan
  std::vector<Peer*> active_;                           // connected
  std::vector<Peer*> calling_;                          // to be called (again)
  std::vector<Peer*> failed_peers_;
  transports::LossReasons reasons_;
  std::vector<Peer*> fencing_;
  std::map<uint32_t, Newcomer> newcomers_;  // by number: the oldest first
  transports::RefusalLog refusals_;
  uint32_t next_newcomer_ = 0;

  std::mutex remotes_mutex_;  // for the copies of other threads
  std::unordered_map<bps_peer, std::shared_ptr<Remote>> remotes_;

  bool slept_ = false;
  size_t first_ = 0;  // who is served first in the next round
  Clock::time_point now_{};
  Clock::time_point looked_{};
  Clock::time_point checked_{};
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_TRANSPORT_H_
