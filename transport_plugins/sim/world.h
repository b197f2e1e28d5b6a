// world.h - what the parts of the simulation share: the clock and its heap, the links, who is alive.
//
// Internal to the simulation: SimFabric (fabric.h) owns one World, endpoints and streams live in it.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SIM_WORLD_H_
#define BYTEPS_TRANSPORT_PLUGINS_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport_plugins/sim/fabric.h"
#include "transport_plugins/sim/options.h"
#include "transport_plugins/sim/random.h"

namespace byteps::sim {

class World {
 public:
  explicit World(FabricOptions options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Time now() const { return now_; }
  Random& random() { return random_; }
  const FabricOptions& options() const { return options_; }
  FabricStats& stats() { return stats_; }
  uint64_t fingerprint() const { return fingerprint_; }
  uint64_t NewId() { return ++last_id_; }

  // `what` names the event in traces and the fingerprint; static storage.
  void At(Time at, const char* what, std::function<void()> fn);
  bool Step();
  // Time of the next event; false if there is none.
  bool Next(Time* at) const;

  // Until when a rate is taken, each way.
  struct Nic {
    Time out = 0;
    Time in = 0;
  };
  Nic* SharedNic(const std::string& name) { return &nics_[name]; }

  const LinkOptions& Link(const std::string& from, const std::string& to) const;
  void SetLink(const std::string& a, const std::string& b, const LinkOptions& link);

  // Runs `fn` when something sent from one node now and due `at` arrives: then, or after the link is healed.
  void Arrive(const std::string& from, const std::string& to, Time at, const char* what, std::function<void()> fn);
  void Cut(const std::string& a, const std::string& b);
  void Heal(const std::string& a, const std::string& b);

  // How a node has died, if it has.
  void Kill(const std::string& node, Death death) { dead_.emplace(node, death); }
  bool Dead(const std::string& node) const { return dead_.count(node) != 0; }
  bool DeadSilently(const std::string& node) const;
  // When a peer notices a death (or a close) that happens now.
  Time NoticedAt();

  void Violation(const std::string& what) const;

 private:
  struct Event {
    Time at;
    uint64_t tie;
    uint64_t sequence;
    const char* what;
    std::function<void()> fn;
  };
  static bool Later(const Event& a, const Event& b);
  static std::pair<std::string, std::string> Ordered(const std::string& a, const std::string& b);

  FabricOptions options_;
  Random random_;
  Time now_ = 0;
  uint64_t sequence_ = 0;
  uint64_t last_id_ = 0;
  uint64_t fingerprint_ = 0;
  std::vector<Event> heap_;
  std::map<std::pair<std::string, std::string>, LinkOptions> links_;
  // Links that are cut, and what has arrived on them meanwhile.
  std::map<std::pair<std::string, std::string>, std::vector<std::function<void()>>> cut_;
  std::map<std::string, Death> dead_;
  std::map<std::string, Nic> nics_;
  FabricStats stats_;
};

}  // namespace byteps::sim

#endif  // BYTEPS_TRANSPORT_PLUGINS_SIM_WORLD_H_
