// The endpoints of a simulated fabric: opened, found, and gone with their nodes.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "abi/byteps.h"
#include "transport_plugins/sim/endpoint.h"

#ifndef BPS_PEER_UNKNOWN
#define BPS_PEER_UNKNOWN 0xffffffffu
#endif

namespace byteps::sim {
// ---- EndpointMap ----------------------------------------------------------------------------------------------------

Endpoint* EndpointMap::Open(const std::string& node, const EndpointOptions& options) {
  const uint64_t id = world_->NewId();
  auto& endpoint = endpoints_[id];
  endpoint = std::make_unique<Endpoint>(world_, this, node, options, id);
  if (world_->Dead(node)) endpoint->Die();
  return endpoint.get();
}

Endpoint* EndpointMap::Find(uint64_t id) {
  auto it = endpoints_.find(id);
  return it == endpoints_.end() ? nullptr : it->second.get();
}

void EndpointMap::Close(uint64_t id) {
  auto it = endpoints_.find(id);
  const std::unique_ptr<Endpoint> closed = std::move(it->second);
  endpoints_.erase(it);
  if (!world_->Dead(closed->node())) TellPeersOf(id);
}

void EndpointMap::NodeDied(const std::string& node, Death death) {
  for (auto& [id, endpoint] : endpoints_) {
    if (endpoint->node() != node) continue;
    endpoint->Die();
    if (death == Death::kNoticed) TellPeersOf(id);
  }
}

void EndpointMap::TellPeersOf(uint64_t id) {
  for (auto& [other, endpoint] : endpoints_) endpoint->PeerGone(id);
}

void EndpointMap::InvalidateKeys(const std::string& node) {
  for (auto& [id, endpoint] : endpoints_) {
    if (endpoint->node() == node) endpoint->InvalidateKeys();
  }
}

void EndpointMap::RefuseCopies(const std::string& node, const std::string& of_node) {
  for (auto& [id, endpoint] : endpoints_) {
    if (endpoint->node() == node) endpoint->RefuseCopies(of_node);
  }
}

void EndpointMap::RefuseMappedWrites(const std::string& node, const std::string& of_node) {
  for (auto& [id, endpoint] : endpoints_) {
    if (endpoint->node() == node) endpoint->RefuseMappedWrites(of_node);
  }
}

}  // namespace byteps::sim
