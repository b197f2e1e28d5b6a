// simulated_server.h - a reduction server on a node of the fabric: its lanes, and its half of the control plane.
#ifndef BYTEPS_TESTS_SIM_SIMULATED_SERVER_H_
#define BYTEPS_TESTS_SIM_SIMULATED_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/control/control_client.h"
#include "server/reducer/reducer.h"
#include "tests/sim/control_stream.h"
#include "tests/sim/job_options.h"
#include "tests/sim/named_scheduler.h"
#include "tests/sim/node.h"

namespace byteps {

class SimulatedServer : public Node, private ControlHandler {
 public:
  SimulatedServer(sim::SimFabric* fabric, const JobOptions& options, uint32_t index, Logger* log);

  const std::vector<std::unique_ptr<Reducer>>& lanes() const { return lanes_; }
  const ControlClient& client() const { return *client_; }
  // The coordinator has sent it home.
  bool over() const { return over_; }
  const absl::Status& failure() const { return failure_; }
  // Sessions its lanes hold.
  size_t sessions() const;

 private:
  bool Step(Time now) override;
  Time NextTimer() const override;

  void Send(const control::Envelope& envelope) override { stream_->Send(envelope); }
  void OnEpoch(const control::Epoch& epoch) override;
  void OnFailure(const absl::Status& fatal) override;
  void OnSessionEnded(uint64_t session_id, const absl::Status& why) override;
  void OnJobEnded(const std::string& reason) override;

  NamedSchedulerConfig scheduler_config_;
  std::vector<std::unique_ptr<Reducer>> lanes_;
  std::unique_ptr<ControlClient> client_;
  std::unique_ptr<ControlStream> stream_;
  bool over_ = false;
  absl::Status failure_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_SIMULATED_SERVER_H_
