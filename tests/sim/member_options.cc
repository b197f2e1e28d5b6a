#include "tests/sim/member_options.h"

#include <utility>

namespace byteps {

EndpointOptions LinkOptionsOf(const JobOptions& options) {
  EndpointOptions endpoint;
  endpoint.hello_interval = 20 * kMillisecond;
  endpoint.hello_timeout = options.start_timeout;
  endpoint.ping_interval = options.heartbeat;
  endpoint.peer_timeout = options.peer_timeout;
  endpoint.token = options.token;
  return endpoint;
}

namespace {

// On which host a node is, if they do not each have their own.
std::string HostOf(const JobOptions& options, const std::string& node) {
  if (!options.colocated || node.rfind("server", 0) != 0) return node;
  const std::string index = node.substr(6);
  return std::stoul(index) < options.workers ? "worker" + index : node;
}

Transport Open(sim::SimFabric* fabric, const JobOptions& options, Node* node, uint32_t more_flags) {
  sim::EndpointOptions endpoint = options.endpoint;
  if (options.adverse) {
    // All members of a job have the same plugin, on networks and hosts as bad as you like.
    sim::Random job(options.seed);
    const sim::EndpointOptions plugin = sim::AdverseEndpoint(job);
    endpoint = sim::AdverseEndpoint(fabric->random());
    endpoint.flags = plugin.flags;
    endpoint.immediate_bits = plugin.immediate_bits;
    endpoint.receive_pool = plugin.receive_pool;
    endpoint.key_size = plugin.key_size;
  }
  endpoint.flags |= more_flags;
  if (options.copy_refused && more_flags != 0) endpoint.copy_refused = fabric->random().Chance(0.5);
  if (const auto own = options.rates.find(node->name()); own != options.rates.end()) {
    endpoint.bytes_per_second = own->second;
  }
  if (options.colocated) endpoint.nic = HostOf(options, node->name());
  endpoint.wake = [node] { node->Wake(); };
  const sim::SimTransport opened = fabric->Open(node->name(), endpoint);
  return Transport::Adopt(opened.table, opened.transport);
}

}  // namespace

bool InPlace(const JobOptions& options) { return options.in_place.value_or(options.seed % 3 == 0); }

Transport OpenTransport(sim::SimFabric* fabric, const JobOptions& options, Node* node) {
  if (!InPlace(options)) return Open(fabric, options, node, 0);
  const uint32_t map = options.seed % 2 == 0 ? BPS_TRANSPORT_MAP_REMOTE : 0;
  return Open(fabric, options, node, BPS_TRANSPORT_COPY | BPS_TRANSPORT_CHEAP_REG | map);
}

Transport OpenLocalTransport(sim::SimFabric* fabric, const JobOptions& options, Node* node) {
  return Open(fabric, options, node, BPS_TRANSPORT_COPY | (options.seed % 2 == 0 ? BPS_TRANSPORT_MAP_REMOTE : 0));
}

control::Lane LaneOf(Transport* transport) {
  control::Lane lane;
  lane.set_transport("sim");
  lane.set_provider(transport->provider());
  lane.set_address(*transport->Address());
  return lane;
}

std::function<std::string(size_t)> RandomBytesOf(sim::SimFabric* fabric) {
  return [fabric](size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(fabric->random().Next());
    return bytes;
  };
}

ControlClientOptions ClientOptionsOf(sim::SimFabric* fabric, const JobOptions& options, const std::string& node) {
  ControlClientOptions client;
  client.token = options.token;
  client.coordinator = "coordinator:9000";
  client.start_timeout = options.start_timeout;
  client.random = RandomBytesOf(fabric);
  client.hello.set_job("job");
  client.hello.mutable_host()->set_name(node);
  client.hello.mutable_host()->set_address("10.0.0.1");
  client.hello.mutable_host()->set_boot_id(HostOf(options, node));
  client.hello.set_pid(4242);
  client.hello.set_num_servers(static_cast<int32_t>(options.servers));
  client.hello.set_preferred_rank(-1);
  client.hello.set_asynchronous(options.asynchronous);
  client.hello.set_staleness(options.staleness);
  return client;
}

}  // namespace byteps
