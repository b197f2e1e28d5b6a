// stream.h - ordered, reliable byte streams between nodes: what TCP is to the control plane.
//
// Internal to the simulation; the functions are SimFabric's (fabric.h).
#ifndef BYTEPS_TRANSPORT_PLUGINS_SIM_STREAM_H_
#define BYTEPS_TRANSPORT_PLUGINS_SIM_STREAM_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "transport_plugins/sim/fabric.h"
#include "transport_plugins/sim/world.h"

namespace byteps::sim {

class StreamMap {
 public:
  explicit StreamMap(World* world) : world_(world) {}

  void Listen(const std::string& node, uint16_t port, StreamHandler* handler);
  void StopListening(const std::string& node, uint16_t port);
  StreamId Dial(const std::string& node, const std::string& to_node, uint16_t port, StreamHandler* handler);
  void Write(StreamId stream, std::string_view bytes);
  void Close(StreamId stream);
  // The node has died (World::Dead says so already).
  void NodeDied(const std::string& node, Death death);

 private:
  // One end. It goes when either end closes; what was written before still arrives.
  struct End {
    std::string node;
    std::string other_node;
    StreamId other = 0;
    StreamHandler* handler;
    Time last_arrival = 0;  // at the other end
  };

  // When something sent now by this end arrives, after all that was sent before.
  Time Arrival(End& end);
  void Closed(StreamId stream, const std::string& why);

  World* world_;
  std::map<std::pair<std::string, uint16_t>, StreamHandler*> listeners_;
  std::map<StreamId, End> ends_;
};

}  // namespace byteps::sim

#endif  // BYTEPS_TRANSPORT_PLUGINS_SIM_STREAM_H_
