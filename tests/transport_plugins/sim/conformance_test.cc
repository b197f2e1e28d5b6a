// The simulated transport under the conformance suite: on a good network, and on networks as bad as the contract
// allows.

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/transport_test.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps::testing {
namespace {

class SimWorld : public TransportWorld {
 public:
  explicit SimWorld(sim::FabricOptions options) : fabric_(std::move(options)) {}

  OpenTransport Open() override {
    const std::string node = "node" + std::to_string(nodes_.size());
    const sim::SimTransport opened = fabric_.Open(node);
    nodes_.emplace_back(opened.transport, node);
    return {opened.table, opened.transport};
  }

  int64_t Now() override { return fabric_.now(); }

  void Pass() override {
    // Nothing is going to happen: let a wait for it come to its end.
    bool passed = false;
    if (fabric_.Step()) return;
    fabric_.Timer(fabric_.now() + sim::kMillisecond, [&] { passed = true; });
    while (!passed && fabric_.Step()) {
    }
  }

  bool Die(const OpenTransport& endpoint) override {
    for (const auto& [transport, node] : nodes_) {
      if (transport == endpoint.transport) fabric_.Kill(node);
    }
    return false;
  }

  bool RealTime() const override { return false; }

 private:
  sim::SimFabric fabric_;
  std::vector<std::pair<bps_transport*, std::string>> nodes_;
};

TransportFactory Plain() {
  return {"plain",
          [] {
            sim::FabricOptions options;
            options.endpoint.flags = BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_READ | BPS_TRANSPORT_WAIT_FD |
                                     BPS_TRANSPORT_MAP_REMOTE | BPS_TRANSPORT_COPY;
            return std::make_unique<SimWorld>(options);
          },
          true};
}

TransportFactory Adverse(uint64_t seed) {
  return {"adverse" + std::to_string(seed), [seed] {
            sim::FabricOptions options;
            options.seed = seed;
            sim::Random random(seed);
            options.link = sim::AdverseLink(random);
            options.endpoint = sim::AdverseEndpoint(random);
            options.endpoint.flags |= BPS_TRANSPORT_WAIT_FD;
            return std::make_unique<SimWorld>(options);
          }};
}

std::vector<TransportFactory> Factories() {
  std::vector<TransportFactory> factories = {Plain()};
  for (uint64_t seed = 1; seed <= 20; ++seed) factories.push_back(Adverse(seed));
  return factories;
}

INSTANTIATE_TEST_SUITE_P(Sim, TransportTest, ::testing::ValuesIn(Factories()), TransportFactory::Name);

}  // namespace
}  // namespace byteps::testing
