#include "tests/transport_plugins/libfabric/node.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <stdexcept>

#include "transport_plugins/common/loss_reasons.h"

extern "C" int32_t bps_transport_plugin_v1_tcp(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps::testing {

// The config and the log token are the node; a bps_failure is a string.
struct NodeHost {
  static void Log(void* instance, int32_t, const char*, int32_t, const char* message) {
    if (instance == nullptr) return;
    Node* node = static_cast<Node*>(instance);
    const std::lock_guard<std::mutex> lock(node->log_mutex_);  // lanes have threads
    node->log_ += std::string(message) + "\n";
  }
  static int32_t Fail(bps_failure* failure, int32_t code, const char* reason) {
    *reinterpret_cast<std::string*>(failure) = reason;
    return code;
  }
  static const char* Config(const void* config, const char* name) {
    if (config == nullptr) return nullptr;
    const auto& values = static_cast<const Node*>(config)->config_;
    auto value = values.find(name);
    return value == values.end() ? nullptr : value->second.c_str();
  }
};

const bps_transport_plugin& TcpPlugin() {
  static constexpr bps_plugin_host kHost = {sizeof(bps_plugin_host), NodeHost::Log, NodeHost::Fail, NodeHost::Config};
  const bps_transport_plugin* plugin = nullptr;
  if (bps_transport_plugin_v1_tcp(&kHost, &plugin) != BPS_OK) std::abort();
  return *plugin;
}

Node::Node(const NodeOptions& options) : config_(options.config), table_(TcpPlugin().table) {
  bps_transport_open_args args{};
  args.struct_size = sizeof args;
  args.config = this;
  args.log = this;
  args.local_host = options.local_host;
  args.device = options.device;
  args.job_key = options.job_key;
  auto* failure = reinterpret_cast<bps_failure*>(&failure_);
  if (table_->open(&args, &transport_, failure) != BPS_OK) throw std::runtime_error(failure_);
  caps_.struct_size = sizeof caps_;
  table_->caps(transport_, &caps_);
  char address[BPS_TRANSPORT_MAX_ADDRESS];
  size_t size = sizeof address;
  if (table_->address(transport_, address, &size, failure) != BPS_OK) throw std::runtime_error(failure_);
  address_.assign(address, size);
}

Node::~Node() { table_->close(transport_); }

int32_t Node::Connect(bps_peer peer, uint32_t local_id, const std::string& address) {
  const bps_connect_args args{sizeof args, peer, local_id, address.data(), address.size(), nullptr};
  return table_->connect(transport_, &args, reinterpret_cast<bps_failure*>(&failure_));
}

bps_region* Node::Reg(void* base, size_t size) {
  bps_region* region = nullptr;
  if (table_->reg(transport_, base, size, &region, reinterpret_cast<bps_failure*>(&failure_)) != BPS_OK) {
    throw std::runtime_error(failure_);
  }
  return region;
}

std::string Node::Key(bps_region* region, bps_peer peer) {
  std::string key(caps_.key_size, '\0');
  if (table_->export_key(transport_, region, peer, key.data()) != BPS_OK) throw std::runtime_error("export_key failed");
  return key;
}

int32_t Node::Write(bps_peer peer, bps_region* region, void* base, size_t size, const std::string& key, uint64_t offset,
                    uint32_t immediate, uint64_t user) {
  const bps_local from{region, base};
  const bps_remote to{key.data(), key.size(), offset};
  return table_->post_write(transport_, peer, &from, size, &to, immediate, user);
}

int32_t Node::SendAndWrite(bps_peer peer, const std::string& message, bps_region* region, void* base, size_t size,
                           const std::string& key, uint32_t immediate, uint64_t user) {
  const bps_local from{region, base};
  const bps_remote to{key.data(), key.size(), 0};
  return table_->post_send_and_write(transport_, peer, message.data(), message.size(), &from, size, &to, immediate,
                                     user);
}

size_t Node::Poll() {
  bps_event events[16];
  const size_t count = table_->poll(transport_, events, std::size(events));
  for (size_t i = 0; i < count; ++i) {
    events_.push_back(events[i]);
    if (events[i].type == BPS_EVENT_PEER_DOWN) why_ = transports::LossReason(events[i]);
    if (events[i].type != BPS_EVENT_MESSAGE) continue;
    messages_.emplace_back(static_cast<const char*>(events[i].data), events[i].size);
    table_->release(transport_, events[i].lease);
  }
  return count;
}

bool Node::Until(const std::function<bool()>& done, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    Poll();
  }
  return true;
}

size_t Node::Count(uint32_t type) const {
  return static_cast<size_t>(
      std::count_if(events_.begin(), events_.end(), [type](const bps_event& event) { return event.type == type; }));
}

size_t Node::Count(uint32_t type, bps_peer peer) const {
  return static_cast<size_t>(std::count_if(events_.begin(), events_.end(), [type, peer](const bps_event& event) {
    return event.type == type && event.peer == peer;
  }));
}

bool Until(Node& a, Node& b, const std::function<bool()>& done, double seconds) {
  return a.Until(
      [&] {
        b.Poll();
        return done();
      },
      seconds);
}

void Join(Node& a, bps_peer to_b, Node& b, bps_peer to_a) {
  if (a.Connect(to_b, to_a, b.address()) != BPS_OK) throw std::runtime_error(a.failure());
  if (b.Connect(to_a, to_b, a.address()) != BPS_OK) throw std::runtime_error(b.failure());
  if (a.Send(to_b, "hello") != BPS_OK || b.Send(to_a, "hello") != BPS_OK) throw std::runtime_error("send refused");
  const bool met = Until(
      a, b, [&] { return a.Count(BPS_EVENT_MESSAGE, to_b) == 1 && b.Count(BPS_EVENT_MESSAGE, to_a) == 1; }, 60);
  if (!met) throw std::runtime_error("no connection within 10 s: " + a.log() + b.log());
  Until(
      a, b, [&] { return a.Count(BPS_EVENT_SENT) != 0 && b.Count(BPS_EVENT_SENT) != 0; }, 60);
  a.Forget();
  b.Forget();
}

}  // namespace byteps::testing
