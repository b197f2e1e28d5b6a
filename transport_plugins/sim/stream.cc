#include "transport_plugins/sim/stream.h"

#include <algorithm>

namespace byteps::sim {

void StreamMap::Listen(const std::string& node, uint16_t port, StreamHandler* handler) {
  listeners_[{node, port}] = handler;
}

void StreamMap::StopListening(const std::string& node, uint16_t port) { listeners_.erase({node, port}); }

Time StreamMap::Arrival(End& end) {
  const LinkOptions& link = world_->Link(end.node, end.other_node);
  const Time at = world_->now() + link.latency + world_->random().Between(0, link.jitter);
  return end.last_arrival = std::max(at, end.last_arrival + 1);
}

StreamId StreamMap::Dial(const std::string& node, const std::string& to_node, uint16_t port, StreamHandler* handler) {
  const StreamId own = world_->NewId();
  if (world_->Dead(node)) return own;
  End& end = ends_[own];
  end = {node, to_node, 0, handler};
  world_->Arrive(node, to_node, Arrival(end), "dial", [this, own, node, to_node, port] {
    auto it = ends_.find(own);
    if (world_->DeadSilently(to_node) || it == ends_.end()) return;
    auto listener = listeners_.find({to_node, port});
    const Time back = world_->now() + world_->Link(to_node, node).latency;
    if (listener == listeners_.end() || world_->Dead(to_node)) {
      const std::string why = "connection to " + to_node + ":" + std::to_string(port) + " refused";
      world_->Arrive(to_node, node, back, "refused", [this, own, why] { Closed(own, why); });
      return;
    }
    const StreamId other = world_->NewId();
    ends_[other] = {to_node, node, own, listener->second};
    it->second.other = other;
    ends_[other].last_arrival = back;
    world_->Arrive(to_node, node, back, "connected", [this, own] {
      auto mine = ends_.find(own);
      if (mine != ends_.end()) mine->second.handler->OnConnected(own);
    });
    listener->second->OnAccept(other, node);
  });
  return own;
}

void StreamMap::Write(StreamId stream, std::string_view bytes) {
  auto it = ends_.find(stream);
  if (it == ends_.end() || it->second.other == 0) return;
  End& end = it->second;
  while (!bytes.empty()) {
    size_t size = bytes.size();
    if (world_->options().split_streams && world_->random().Chance(0.3)) size = 1 + world_->random().Below(size);
    world_->Arrive(end.node, end.other_node, Arrival(end), "bytes",
                   [this, other = end.other, piece = std::string(bytes.substr(0, size))] {
                     auto receiver = ends_.find(other);
                     if (receiver != ends_.end()) receiver->second.handler->OnBytes(other, piece);
                   });
    bytes.remove_prefix(size);
  }
}

void StreamMap::Close(StreamId stream) {
  auto it = ends_.find(stream);
  if (it == ends_.end()) return;
  End end = std::move(it->second);
  ends_.erase(it);
  if (end.other == 0) return;
  const std::string why = end.node + " closed the connection";
  world_->Arrive(end.node, end.other_node, Arrival(end), "closed",
                 [this, other = end.other, why] { Closed(other, why); });
}

void StreamMap::Closed(StreamId stream, const std::string& why) {
  auto it = ends_.find(stream);
  if (it == ends_.end()) return;
  StreamHandler* handler = it->second.handler;
  ends_.erase(it);
  handler->OnClosed(stream, why);
}

void StreamMap::NodeDied(const std::string& node, Death death) {
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    it = it->first.first == node ? listeners_.erase(it) : std::next(it);
  }
  for (auto it = ends_.begin(); it != ends_.end();) {
    if (it->second.node != node) {
      ++it;
      continue;
    }
    End end = std::move(it->second);
    it = ends_.erase(it);
    if (end.other == 0 || death == Death::kSilent) continue;
    // Behind what it had written, and not before a death is noticed.
    const Time at = std::max(Arrival(end), world_->NoticedAt());
    world_->Arrive(node, end.other_node, at, "reset",
                   [this, other = end.other, node] { Closed(other, "connection reset by " + node); });
  }
}

}  // namespace byteps::sim
