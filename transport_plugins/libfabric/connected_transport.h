// connected_transport.h - a Transport on connections: tcp, verbs.
//
// Every peer has a connection of its own (endpoint.h says why). Of two peers the one with the smaller nonce calls, the
// other answers; what the caller says of itself (Hello) is checked against what the answering side was told about its
// peers, and a caller that is not known yet waits.
//
// Threads: one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_CONNECTED_TRANSPORT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_CONNECTED_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/common/loss_reasons.h"
#include "transport_plugins/common/refusal_log.h"
#include "transport_plugins/libfabric/endpoint.h"
#include "transport_plugins/libfabric/peer.h"
#include "transport_plugins/libfabric/region.h"
#include "transport_plugins/libfabric/transport.h"

namespace byteps::fabric {

class ConnectedTransport : public Transport {
 public:
  ConnectedTransport(const transports::Host& host, std::unique_ptr<Endpoint> endpoint, uint64_t job_key);
  ~ConnectedTransport() override;

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
  int32_t PostSendAndWrite(bps_peer number, std::span<const std::byte> message, const bps_local& from, size_t size,
                           const bps_remote& to, uint32_t immediate, uint64_t user) override;
  size_t Poll(bps_event* events, size_t capacity) override;
  void Release(uint64_t lease) override;
  int WaitFd() const override { return endpoint_->wait_fd(); }
  int32_t Arm() override;

  // -- For transports that are made of several --

  // Lets `peer` into `region` by the key that another ConnectedTransport has given out.
  int32_t ExportSameKey(bps_region* region, bps_peer peer, const void* key);
  // What PostWrite would say of these, whatever the state of the peer.
  int32_t CheckWrite(const bps_local& from, size_t size, const bps_remote& to) const;
  uint32_t depth() const { return depth_; }

 private:
  // What a caller says of itself when it connects.
  struct Hello {
    uint32_t magic;
    uint32_t caller;  // as the answering side calls it
    uint64_t job_key;
    uint64_t caller_nonce, answerer_nonce;
  };
  // A caller that Connect has not named yet.
  struct Request {
    InfoPtr info;
    Hello hello;
    Clock::time_point since;
  };
  // What the queue of connections tells: libfabric's FI_CONNREQ, FI_CONNECTED, FI_SHUTDOWN, or kConnectionError.
  static constexpr uint32_t kConnectionError = ~0U;
  struct ConnectionEvent {
    uint32_t kind = 0;
    const fid* connection = nullptr;
    int error = 0;    // of kConnectionError
    InfoPtr request;  // of FI_CONNREQ
    Hello hello{};    // likewise; zeros if the caller said less
  };

  int32_t Keep(std::unique_ptr<Region> region, bps_region** out, std::string* reason);
  Peer* FindPeer(bps_peer number);
  // The peer and a free operation for a post, or the code to answer with.
  int32_t Begin(bps_peer number, Completion::Kind kind, uint64_t user, Operation** operation);
  int32_t BeginWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                     uint64_t user, Operation** operation);
  void Enqueue(Operation* operation);

  // Connections.
  int Call(Peer* peer, const std::string& address);
  int Answer(Peer* peer, fi_info* request);
  void Reject(fi_info* request);
  // Those whose peer never became known, and those that were not looked at.
  void RejectRequests();
  // False if `request` fits no peer that is known.
  bool Meet(Request& request);

  // Progress.
  void Progress();
  // Handles what has completed, one fetch full; more may come at once. Returns how many. To ask once more whether that
  // was all would cost as many system calls as to ask the first time.
  size_t FetchCompletions();
  // Handles all that has come.
  void EmptyQueue();
  // False if nothing has come.
  bool NextConnectionEvent(ConnectionEvent* event);
  void DrainConnections();
  void HandleConnectionEvent(ConnectionEvent event);
  void HandleRequest(Request request);
  // Is it of this job, and for this endpoint?
  bool IsForUs(const Hello& hello) const;
  void LookAtDoor();
  void Flush(Peer* peer);
  void FlushBacklog();
  void CheckTime();
  void HandleCompletion(const fi_cq_data_entry& entry);
  void HandleError(const fi_cq_err_entry& error);
  void HandleReceive(Receive* receive, size_t size);
  // The message is between these bytes of the buffer.
  void HandleMessage(Receive* receive, size_t begin, size_t end);
  // `taken`: the receive that it used up, where it does.
  void HandleImmediate(uint64_t data, Receive* taken);
  void Repost(Receive* receive);

  // Failure. `MarkFailed` may be called anywhere; `TakeDown` follows when nothing is being iterated over.
  void MarkFailed(Peer* peer, int32_t code, const std::string& cause);
  void MarkFlushedPeersFailed();
  void ReportFailedPeers();
  void TakeDown(Peer* peer, int32_t code);
  void End(Operation* operation, int32_t code);

  const uint64_t job_key_;
  const std::chrono::nanoseconds peer_timeout_;
  const std::unique_ptr<Endpoint> endpoint_;
  const uint64_t nonce_;
  const uint32_t depth_;
  std::unordered_map<Region*, std::unique_ptr<Region>> regions_;
  std::unordered_map<bps_peer, std::unique_ptr<Peer>> peers_;
  // Disconnected, but their messages are still on loan.
  std::unordered_map<bps_peer, std::unique_ptr<Peer>> departed_;
  std::unordered_map<const fid*, Peer*> by_connection_;
  std::deque<Request> requests_;
  std::vector<Peer*> backlog_;  // peers with operations that the provider has not taken
  std::vector<Peer*> failed_peers_;
  std::vector<bps_peer> flushed_;                  // whose connections have ended, the cause not being known yet
  std::vector<Operation*> told_;                   // of Flush
  std::pmr::unsynchronized_pool_resource memory_;  // of the queues
  std::pmr::deque<bps_event> events_{&memory_};
  transports::LossReasons reasons_;
  transports::RefusalLog refusals_;
  size_t connecting_ = 0;
  uint32_t rounds_ = 0;
  bool slept_ = true;
  Clock::time_point now_, checked_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_CONNECTED_TRANSPORT_H_
