// simulated_coordinator.h - a Coordinator on a node of the fabric.
#ifndef BYTEPS_TESTS_SIM_SIMULATED_COORDINATOR_H_
#define BYTEPS_TESTS_SIM_SIMULATED_COORDINATOR_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/log.h"
#include "core/control/control_codec.h"
#include "server/membership/coordinator.h"
#include "tests/sim/control_stream.h"
#include "tests/sim/job_options.h"
#include "tests/sim/node.h"

namespace byteps {

class SimulatedCoordinator : public Node, private sim::StreamHandler, private CoordinatorHandler {
 public:
  SimulatedCoordinator(sim::SimFabric* fabric, const JobOptions& options, const Logger* log);

  const Coordinator& coordinator() const { return coordinator_; }

 private:
  bool Step(Time now) override;
  Time NextTimer() const override { return coordinator_.NextTimer(); }

  void OnAccept(sim::StreamId stream, const std::string& node) override;
  void OnConnected(sim::StreamId) override {}
  void OnBytes(sim::StreamId stream, std::string_view bytes) override;
  void OnClosed(sim::StreamId stream, const std::string& why) override;

  void Send(ConnectionId connection, const control::Envelope& envelope) override;
  void OnRegistered(ConnectionId connection, const control::Hello& hello) override;
  void Close(ConnectionId connection) override;

  std::map<sim::StreamId, std::unique_ptr<FrameReader>> readers_;
  Coordinator coordinator_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_SIMULATED_COORDINATOR_H_
