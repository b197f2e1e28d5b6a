// datagram_transport.h - a Transport on one endpoint of reliable datagrams: EFA.
//
// Nothing is assumed of the provider but that a packet arrives whole, once, and some time: no order, no order between
// writes and messages, no connection whose loss would be told, no event at the target other than its immediate.
//
// - Messages are numbered, and wait for their turn where they arrive.
// - A write is the device's where the device can do it and closing the registration stops it for good. Elsewhere
//   the provider would imitate it in software, and what is half received goes on when the registration is closed; then
//   writes are cut into pieces that travel as messages, land in our own buffers and are copied by us, who know whom a
//   key was given to and whether it was taken back. That costs a copy, and the imitation costs the same.
// - The fence is our table of keys and tokens (and the closed registration): no packet is needed for it, and
//   no other peer notices.
//
// Threads: one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_TRANSPORT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/common/loss_reasons.h"
#include "transport_plugins/libfabric/datagram_endpoint.h"
#include "transport_plugins/libfabric/datagram_peer.h"
#include "transport_plugins/libfabric/datagram_wire.h"
#include "transport_plugins/libfabric/region.h"
#include "transport_plugins/libfabric/transport.h"

namespace byteps::fabric {

// Immediates of the device's writes: the writer's tag, then what the owner sees.
inline constexpr uint32_t kTagShift = 24, kNoTag = 255;

class DatagramTransport : public Transport {
 public:
  // `wire`: stands in front of the endpoint, in tests; NULL: the endpoint itself.
  DatagramTransport(const transports::Host& host, std::unique_ptr<DatagramEndpoint> endpoint,
                    std::unique_ptr<DatagramWire> wire, uint64_t job_key);
  ~DatagramTransport() override;

  void Caps(bps_transport_caps* caps) const override;
  void WriteAddress(void* out, size_t* size) const override;
  int32_t Connect(const bps_connect_args& args, std::string* reason) override;
  int32_t Disconnect(bps_peer number) override;
  int32_t Reg(void* base, size_t size, bps_region** region, std::string* reason) override;
  int32_t RegDevice(const bps_device_memory& memory, bps_region** region, std::string* reason) override;
  void Unreg(bps_region* region) override;
  int32_t ExportKey(bps_region* region, bps_peer peer, void* key) override;
  int32_t PostSend(bps_peer number, const void* data, size_t size, uint64_t user) override;
  int32_t PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user) override;
  size_t Poll(bps_event* events, size_t capacity) override;
  void Release(uint64_t lease) override;
  int WaitFd() const override { return endpoint_->wait_fd(); }
  int32_t Arm() override;

 private:
  // Whom a key was given to, where writes travel as messages.
  struct Grant {
    Region* region;
    bps_peer peer;
  };
  using Granted = std::map<std::pair<Region*, bps_peer>, uint64_t>;

  int32_t Keep(std::unique_ptr<Region> region, bps_region** out, std::string* reason);
  DatagramPeer* FindPeer(bps_peer number);
  int32_t Begin(bps_peer number, DatagramPeer** peer);

  // Outgoing.
  void Flush(DatagramPeer* peer);
  bool Give(DatagramPeer* peer, Packet* packet);  // false: not now
  void SendHello(DatagramPeer* peer);
  bool WantsHello(const DatagramPeer& peer) const;
  void CutPieces(DatagramPeer* peer);

  // Incoming.
  void AddReceives();
  void PostReceives();
  void Progress();
  void Drain();
  void HandleSent(Packet* packet, const WireCompletion& completion);
  void HandleLostHello(DatagramPeer* peer, const std::string& detail);
  void HandleReceive(Packet* receive, size_t size);
  void HandleHello(const HelloPacket& hello);
  void HandleMessage(DatagramPeer* peer, Packet* receive);
  void HandlePiece(DatagramPeer* peer, const PieceHeader& piece, const std::byte* data, size_t size);
  void HandleImmediate(uint32_t data);
  void Deliver(DatagramPeer* peer, Packet* receive);
  void Repost(Packet* receive);

  // Failure, as in ConnectedTransport.
  void CheckTime();
  void MarkFailed(DatagramPeer* peer, int32_t code, const std::string& cause);
  void ReportFailedPeers();
  void TakeDown(DatagramPeer* peer, int32_t code);
  void Withdraw(bps_peer peer);
  void Withdraw(Region* region);
  void Erase(Granted::iterator granted);
  void Forget(bps_peer number);  // if nothing holds it any more
  void End(DatagramPeer* peer, uint32_t type, uint64_t user, int32_t code);

  const uint64_t job_key_;
  const std::chrono::nanoseconds peer_timeout_;
  const std::unique_ptr<DatagramEndpoint> endpoint_;
  const std::unique_ptr<DatagramWire> other_wire_;
  DatagramWire& wire_;
  const bool direct_;  // writes are the device's
  const uint64_t nonce_;
  std::unordered_map<Region*, std::unique_ptr<Region>> regions_;
  std::unordered_map<uint64_t, Grant> grants_;  // by key
  Granted granted_;                             // the keys of grants_
  std::unordered_map<bps_peer, std::unique_ptr<DatagramPeer>> peers_;
  // Disconnected, but messages are on loan, or packets with the provider.
  std::unordered_map<bps_peer, std::unique_ptr<DatagramPeer>> departed_;
  std::deque<uint32_t> free_tags_;
  std::unordered_map<uint32_t, bps_peer> by_tag_;
  std::vector<std::unique_ptr<BufferPool>> receive_pools_;
  std::vector<std::unique_ptr<Packet>> receives_;
  std::vector<Packet*> unposted_;
  std::vector<DatagramPeer*> failed_peers_;
  std::deque<bps_event> events_;
  transports::LossReasons reasons_;
  Clock::time_point now_, checked_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_TRANSPORT_H_
