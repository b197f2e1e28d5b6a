#include "tests/sim/simulated_server.h"

#include <algorithm>
#include <utility>

#include "tests/sim/member_options.h"

namespace byteps {

SimulatedServer::SimulatedServer(sim::SimFabric* fabric, const JobOptions& options, uint32_t index, Logger* log)
    : Node(fabric, "server" + std::to_string(index), options, [this] { stream_->Open(); }),
      scheduler_config_(options.scheduling_credit) {
  ControlClientOptions client = ClientOptionsOf(fabric, options, name());
  client.hello.set_role(control::SERVER);
  client.hello.set_preferred_rank(static_cast<int32_t>(index));
  client.hello.set_slot_bytes(options.slot_bytes);
  for (uint32_t lane = 0; lane < options.lanes; ++lane) {
    Transport transport = OpenTransport(fabric, options, this);
    *client.hello.add_lanes() = LaneOf(&transport);
    ReducerOptions reducer;
    reducer.endpoint = LinkOptionsOf(options);
    reducer.lane = lane;
    reducer.transport = "sim";
    reducer.memory = options.server_memory;
    reducer.slot_bytes = options.slot_bytes;
    reducer.slots_per_peer = options.slots_per_peer;
    reducer.inline_bytes = options.inline_bytes;
    if (options.schedule_results) {
      reducer.make_scheduler = [this, &options, log] {
        return Scheduler::Create(NamedSchedulerPlugin(options.scheduler), BPS_DIRECTION_RESULT, &scheduler_config_,
                                 log);
      };
    }
    absl::StatusOr<std::unique_ptr<Reducer>> made = Reducer::Make(std::move(transport), reducer, log);
    if (!made.ok()) {
      fabric->Violation(name() + ": " + made.status().ToString());
      return;
    }
    lanes_.push_back(*std::move(made));
  }
  client_ = std::make_unique<ControlClient>(std::move(client), static_cast<ControlHandler*>(this), now());
  stream_ = std::make_unique<ControlStream>(fabric, this, "coordinator", client_.get());
}

size_t SimulatedServer::sessions() const {
  size_t sessions = 0;
  for (const auto& lane : lanes_) sessions += lane->sessions();
  return sessions;
}

bool SimulatedServer::Step(Time now) {
  client_->Tick(now);
  bool worked = false;
  for (const auto& lane : lanes_) {
    worked |= lane->Poll(now);
    for (const BrokenSession& broken : lane->TakeBroken()) {
      client_->BreakSession(now, broken.session, broken.member, broken.why);
    }
  }
  return worked;
}

Time SimulatedServer::NextTimer() const {
  Time next = client_->NextTimer();
  for (const auto& lane : lanes_) next = std::min(next, lane->NextTimer());
  return next;
}

void SimulatedServer::OnEpoch(const control::Epoch& epoch) {
  for (const auto& lane : lanes_) {
    const absl::Status added = lane->AddSession(now(), epoch, client_->member());
    if (!added.ok()) {
      failure_ = added;
      client_->Fail(now(), added);
      return;
    }
  }
}

void SimulatedServer::OnFailure(const absl::Status& fatal) {
  failure_ = fatal;
  over_ = true;
}

void SimulatedServer::OnSessionEnded(uint64_t session_id, const absl::Status&) {
  for (const auto& lane : lanes_) lane->EndSession(now(), session_id);
  Wake();
}

void SimulatedServer::OnJobEnded(const std::string&) { over_ = true; }

}  // namespace byteps
