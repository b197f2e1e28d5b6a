// node.h - an endpoint of the tcp plugin for tests, with a host of its own.
//
//     Node node({.config = {{"BYTEPS_PEER_TIMEOUT", "1"}}});
//     node.Connect(7, 3, address_of_the_other);
//     node.Until([&] { return node.down(7); }, 5);
//
// Throws std::runtime_error with the plugin's reason when opening fails.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_NODE_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_NODE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "abi/transport.h"

namespace byteps::testing {

// What the plugin answers at load. Aborts if it does not.
const bps_transport_plugin& TcpPlugin();

struct NodeOptions {
  std::map<std::string, std::string> config = {};
  const char* local_host = "127.0.0.1";
  const char* device = nullptr;
  uint64_t job_key = 1;
};

class Node {
 public:
  explicit Node(const NodeOptions& options = {});
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const bps_transport_caps& caps() const { return caps_; }
  const std::string& address() const { return address_; }
  // Everything that was logged.
  std::string log() const {
    const std::lock_guard<std::mutex> lock(log_mutex_);
    return log_;
  }

  // The code; the reason of a failure is in failure().
  int32_t Connect(bps_peer peer, uint32_t local_id, const std::string& address);
  const std::string& failure() const { return failure_; }
  int32_t Disconnect(bps_peer peer) { return table_->disconnect(transport_, peer); }
  bps_region* Reg(void* base, size_t size);
  void Unreg(bps_region* region) { table_->unreg(transport_, region); }
  std::string Key(bps_region* region, bps_peer peer);
  int32_t Send(bps_peer peer, std::string_view data, uint64_t user = 0) {
    return table_->post_send(transport_, peer, data.data(), data.size(), user);
  }
  int32_t Write(bps_peer peer, bps_region* region, void* base, size_t size, const std::string& key, uint64_t offset,
                uint32_t immediate, uint64_t user = 0);
  int32_t SendAndWrite(bps_peer peer, const std::string& message, bps_region* region, void* base, size_t size,
                       const std::string& key, uint32_t immediate, uint64_t user = 0);

  // Fetches and keeps what there is; messages are released at once. Returns the number of events.
  size_t Poll();
  bool Arm() { return table_->arm(transport_) == BPS_OK; }
  int wait_fd() { return table_->wait_fd(transport_); }
  // Polls until `done` or for `seconds`; whether `done` came true.
  bool Until(const std::function<bool()>& done, double seconds);

  const std::vector<bps_event>& events() const { return events_; }
  const std::vector<std::string>& messages() const { return messages_; }
  const std::string& why() const { return why_; }  // the last peer is down
  size_t Count(uint32_t type) const;
  size_t Count(uint32_t type, bps_peer peer) const;
  bool down(bps_peer peer) const { return Count(BPS_EVENT_PEER_DOWN, peer) != 0; }
  void Forget() { events_.clear(), messages_.clear(); }

 private:
  friend struct NodeHost;

  std::map<std::string, std::string> config_;
  mutable std::mutex log_mutex_;
  std::string address_, failure_, log_;
  const bps_transport_table* table_;
  bps_transport* transport_ = nullptr;
  bps_transport_caps caps_{};
  std::vector<bps_event> events_;
  std::vector<std::string> messages_;
  std::string why_;
};

// Polls both until `done` or for `seconds`.
bool Until(Node& a, Node& b, const std::function<bool()>& done, double seconds);

// Makes them known to each other (a calls b `to_b`, b calls a `to_a`) and waits until a message got through each way.
void Join(Node& a, bps_peer to_b, Node& b, bps_peer to_a);

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_NODE_H_
