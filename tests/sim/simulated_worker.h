// simulated_worker.h - a worker on a node of the fabric: engine and control client, joined as
// core/worker/session/session.h joins them.
//
//     Call* call = worker.PushPull("w", input);
//     job.RunUntil([&] { return call->ended(); });
//     call->outcome(), call->output
#ifndef BYTEPS_TESTS_SIM_SIMULATED_WORKER_H_
#define BYTEPS_TESTS_SIM_SIMULATED_WORKER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/control/control_client.h"
#include "core/worker/engine/engine.h"
#include "tests/sim/chaos_scheduler.h"
#include "tests/sim/control_stream.h"
#include "tests/sim/job_options.h"
#include "tests/sim/named_scheduler.h"
#include "tests/sim/node.h"

namespace byteps {

// One operation and its memory, which stays what it is from the end of the operation on: see Check.
class Call {
 public:
  bool ended() const { return request->ended(); }
  absl::Status outcome() const { return request->outcome(); }
  bool ok() const { return ended() && outcome().ok(); }
  // The output as numbers.
  template <typename T>
  std::vector<T> Output() const {
    return std::vector<T>(reinterpret_cast<const T*>(output.data()),
                          reinterpret_cast<const T*>(output.data() + output.size()));
  }

  std::string name;
  std::vector<std::byte> input;
  std::vector<std::byte> output;  // the operation's; the input's own memory if it runs in place
  std::shared_ptr<Request> request;
  std::vector<std::byte> input_at_end, output_at_end;
};

struct Ask {
  std::string name;
  uint32_t dtype = BPS_FLOAT32;
  std::vector<int64_t> shape;
  std::vector<std::byte> input;
  int32_t mode = BPS_MODE_SYNCHRONOUS;
  wire::Operation kind = wire::Operation::kPushPull;
  int32_t reduction = BPS_SUM;
  int32_t root = 0;
  int32_t priority = 0;
  Time timeout = 600 * kSecond;
  uint64_t match = 0;     // as of a Submission
  absl::Status given_up;  // not OK: as of a Submission
};

class SimulatedWorker : public Node, private ControlHandler, private EngineHandler {
 public:
  SimulatedWorker(sim::SimFabric* fabric, const JobOptions& options, uint32_t index, uint32_t life, Logger* log);
  ~SimulatedWorker() override;

  // Registered, and connected to all servers.
  bool ready() const { return joined_ && engine_->ready(); }
  uint32_t rank() const { return rank_; }
  Engine& engine() { return *engine_; }
  const ControlClient& client() const { return *client_; }
  // Not OK: the session has failed, and why.
  const absl::Status& failure() const { return failure_; }

  // Submits. The call belongs to the worker. nullptr: refused (and `refused` says why).
  Call* Submit(Ask ask, absl::Status* refused = nullptr);
  // A one-dimensional float32 tensor.
  Call* PushPull(const std::string& name, const std::vector<float>& input, int32_t reduction = BPS_SUM,
                 uint64_t match = 0);
  // The same of an asynchronous tensor.
  Call* Add(const std::string& name, const std::vector<float>& input);
  // Submits a collective, whose memory and result are the caller's.
  absl::Status Collect(Collective asked);
  // Has no data left.
  absl::Status Join(JoinAsked asked);
  void Cancel(Call* call);
  void Cancel(const Request* request);
  // Forgets the calls that have ended, and their memory: for long runs.
  void Forget();
  // What ended must not have changed since; a sentence about what did.
  std::optional<std::string> Check() const;

  void Barrier(const std::string& name, Time timeout);
  // The outcome of the last barrier of this name, once it has one.
  std::optional<absl::Status> barrier(const std::string& name) const;
  // Goodbye; its outcome follows.
  void Leave(Time timeout);
  const std::optional<absl::Status>& left() const { return left_; }

 private:
  bool Step(Time now) override;
  Time NextTimer() const override;

  void Send(const control::Envelope& envelope) override { stream_->Send(envelope); }
  void OnEpoch(const control::Epoch& epoch) override;
  void OnAssignment(const control::Assignment& assignment) override;
  void OnPeerAddress(uint32_t member, const control::Lane& lane) override;
  void OnBarrier(const std::string& name, uint64_t sequence, const absl::Status& status) override;
  void OnGoodbye(const absl::Status& status) override;
  void OnFailure(const absl::Status& fatal) override;

  void OnDeclare(const std::vector<control::TensorSpec>& tensors) override;
  void OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) override;
  void OnLost(uint32_t member, const absl::Status& why) override;
  void OnFailed(const absl::Status& why) override;

  void Fail(const absl::Status& why);

  NamedSchedulerConfig scheduler_config_;
  ChaosSchedulerConfig chaos_config_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ControlClient> client_;
  std::unique_ptr<ControlStream> stream_;
  bool joined_ = false;
  uint32_t rank_ = 0;
  absl::Status failure_;
  std::optional<absl::Status> left_;
  std::map<std::string, std::optional<absl::Status>> barriers_;
  std::deque<Call> calls_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_SIMULATED_WORKER_H_
