#include "tests/sim/simulated_worker.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/plugin/scheduler.h"
#include "tests/sim/member_options.h"

namespace byteps {

namespace {

struct Seat {
  uint32_t host, hosts, local_rank, local_size;
};

Seat PlaceOf(const JobOptions& options, uint32_t index) {
  std::vector<uint32_t> hosts = options.hosts;
  if (hosts.empty()) hosts.assign(options.workers / options.workers_per_host, options.workers_per_host);
  Seat place{0, static_cast<uint32_t>(hosts.size()), index, hosts[0]};
  while (place.local_rank >= hosts[place.host]) place.local_rank -= hosts[place.host++];
  place.local_size = hosts[place.host];
  return place;
}

}  // namespace

SimulatedWorker::SimulatedWorker(sim::SimFabric* fabric, const JobOptions& options, uint32_t index, uint32_t life,
                                 Logger* log)
    : Node(fabric, "worker" + std::to_string(index) + (life == 0 ? "" : "." + std::to_string(life)), options,
           [this] { stream_->Open(); }),
      scheduler_config_(options.scheduling_credit),
      chaos_config_(fabric->random().Next(), options.credit) {
  EngineOptions engine;
  engine.servers = {options.inline_bytes, 64 * 1024, 2 * kSecond};
  engine.local.release_grace = 2 * kSecond;
  engine.fatal_grace = 300 * kMillisecond;
  engine_ = std::make_unique<Engine>(engine, static_cast<EngineHandler*>(this), log);
  ControlClientOptions client = ClientOptionsOf(fabric, options, name());
  const auto scheduler = [&](int32_t direction) {
    if (options.scheduler.empty()) {
      return *Scheduler::Create(ChaosSchedulerPlugin(), direction, &chaos_config_, log);
    }
    return *Scheduler::Create(NamedSchedulerPlugin(options.scheduler), direction, &scheduler_config_, log);
  };
  if (options.servers != 0) {
    Transport transport = OpenTransport(fabric, options, this);
    *client.hello.add_lanes() = LaneOf(&transport);
    CarrierOptions carrier;
    carrier.endpoint = LinkOptionsOf(options);
    carrier.window_slots = options.window_slots;
    carrier.bounce_blocks = options.bounce_blocks;
    carrier.in_place = InPlace(options) && fabric->random().Chance(0.8);
    engine_->UseServers(scheduler(BPS_DIRECTION_PUSH)).AddCarrier("sim", std::move(transport), carrier);
  }
  const Seat place = PlaceOf(options, index);
  if (options.local && (place.hosts == 1 || place.local_size > 1)) {
    Transport transport = OpenLocalTransport(fabric, options, this);
    *client.hello.mutable_local() = LaneOf(&transport);
    client.hello.set_inline_bytes(std::min(options.inline_bytes, LocalStage::MaxInline(transport.caps())));
    client.hello.mutable_host()->set_boot_id("host" + std::to_string(place.host));
    engine_->UseLocal(scheduler(BPS_DIRECTION_LOCAL), std::move(transport), LinkOptionsOf(options));
  }

  for (const JobOptions::AddedStage& added : options.stages) {
    engine_->UseStage(added.before, added.make(options.seed * 1000 + index));
  }
  engine_->UseCollectives({LinkOptionsOf(options), 2 * kSecond},
                          [this, fabric, options] { return OpenTransport(fabric, options, this); });

  client.hello.set_role(control::WORKER);
  client.hello.set_host_index(static_cast<int32_t>(place.host));
  client.hello.set_num_hosts(static_cast<int32_t>(place.hosts));
  client.hello.set_local_rank(static_cast<int32_t>(place.local_rank));
  client.hello.set_local_size(static_cast<int32_t>(place.local_size));
  client.hello.set_partition_bytes(options.partition_bytes);
  client.hello.set_groups(options.groups);
  client_ = std::make_unique<ControlClient>(std::move(client), static_cast<ControlHandler*>(this), now());
  stream_ = std::make_unique<ControlStream>(fabric, this, "coordinator", client_.get());
}

SimulatedWorker::~SimulatedWorker() {
  // As Session::Close.
  engine_->Fail(now(), absl::CancelledError("the session was closed"));
  for (Completion& completion : engine_->TakeCompletions()) completion.Run();
}

bool SimulatedWorker::Step(Time now) {
  client_->Tick(now);
  const bool worked = engine_->Poll(now);
  for (Completion& completion : engine_->TakeCompletions()) completion.Run();
  for (Call& call : calls_) {
    if (!call.ended() || !call.input_at_end.empty()) continue;
    call.input_at_end = call.input;
    call.output_at_end = call.output;
  }
  return worked;
}

Time SimulatedWorker::NextTimer() const { return std::min(engine_->NextTimer(), client_->NextTimer()); }

Call* SimulatedWorker::Submit(Ask ask, absl::Status* refused) {
  absl::StatusOr<Tensor*> tensor = engine_->tensors().Declare(ask.name, ask.dtype, ask.shape, ask.mode);
  if (!tensor.ok()) {
    if (refused != nullptr) *refused = tensor.status();
    return nullptr;
  }
  Call& call = calls_.emplace_back();
  call.name = ask.name;
  call.input = std::move(ask.input);
  // Every other operation runs in place.
  const bool in_place = ask.kind == wire::Operation::kPushPull && fabric()->random().Chance(0.5);
  call.output.assign((*tensor)->bytes(), std::byte{0x7e});
  if (in_place) call.output.swap(call.input);
  call.request = std::make_shared<Request>(nullptr, nullptr);
  Submission asked;
  asked.tensor = *tensor;
  asked.kind = ask.kind;
  asked.reduction = ask.reduction;
  asked.root = ask.root;
  asked.priority = ask.priority;
  asked.input = in_place ? call.output.data() : call.input.data();
  asked.output = call.output.data();
  asked.timeout = ask.timeout;
  asked.match = ask.match;
  asked.given_up = ask.given_up;
  asked.request = call.request;
  const absl::Status admitted = failure_.ok() ? engine_->Admit(asked) : failure_;
  if (!admitted.ok()) {
    calls_.pop_back();
    if (refused != nullptr) *refused = admitted;
    return nullptr;
  }
  engine_->Submit(now(), asked);
  Wake();
  return &call;
}

Call* SimulatedWorker::PushPull(const std::string& tensor, const std::vector<float>& input, int32_t reduction,
                                uint64_t match) {
  Ask ask;
  ask.name = tensor;
  ask.shape = {static_cast<int64_t>(input.size())};
  const auto* bytes = reinterpret_cast<const std::byte*>(input.data());
  ask.input.assign(bytes, bytes + input.size() * sizeof(float));
  ask.reduction = reduction;
  ask.match = match;
  return Submit(std::move(ask));
}

Call* SimulatedWorker::Add(const std::string& tensor, const std::vector<float>& input) {
  Ask ask;
  ask.name = tensor;
  ask.mode = BPS_MODE_ASYNCHRONOUS;
  ask.shape = {static_cast<int64_t>(input.size())};
  const auto* bytes = reinterpret_cast<const std::byte*>(input.data());
  ask.input.assign(bytes, bytes + input.size() * sizeof(float));
  return Submit(std::move(ask));
}

absl::Status SimulatedWorker::Collect(Collective asked) {
  if (!failure_.ok()) return failure_;
  if (absl::Status status = engine_->collectives()->Admit(asked); !status.ok()) return status;
  engine_->collectives()->Submit(now(), std::move(asked));
  Wake();
  return absl::OkStatus();
}

absl::Status SimulatedWorker::Join(JoinAsked asked) {
  if (!failure_.ok()) return failure_;
  if (absl::Status status = engine_->collectives()->joins().Admit(); !status.ok()) return status;
  engine_->collectives()->joins().Submit(now(), std::move(asked));
  Wake();
  return absl::OkStatus();
}

void SimulatedWorker::Cancel(Call* call) { Cancel(call->request.get()); }

void SimulatedWorker::Cancel(const Request* request) {
  engine_->Cancel(now(), request);
  Wake();
}

void SimulatedWorker::Forget() {
  while (!calls_.empty() && calls_.front().ended()) calls_.pop_front();
}

std::optional<std::string> SimulatedWorker::Check() const {
  for (const Call& call : calls_) {
    if (call.input_at_end.empty()) continue;
    if (call.input != call.input_at_end) return name() + ": the input of " + call.name + " changed after its end";
    if (call.output != call.output_at_end) return name() + ": the output of " + call.name + " changed after its end";
  }
  return std::nullopt;
}

void SimulatedWorker::Barrier(const std::string& barrier_name, Time timeout) {
  barriers_[barrier_name].reset();
  client_->Barrier(now(), barrier_name, timeout);
  Wake();
}

std::optional<absl::Status> SimulatedWorker::barrier(const std::string& barrier_name) const {
  auto it = barriers_.find(barrier_name);
  return it == barriers_.end() ? std::nullopt : it->second;
}

void SimulatedWorker::Leave(Time timeout) {
  client_->Goodbye(now(), timeout);
  Wake();
}

void SimulatedWorker::OnEpoch(const control::Epoch& epoch) {
  if (joined_) return;
  joined_ = true;
  const absl::Status status = engine_->Join(now(), epoch, client_->member());
  if (!status.ok()) return OnFailed(status);
  for (const control::Member& worker : epoch.workers()) {
    if (worker.member() == client_->member()) rank_ = static_cast<uint32_t>(worker.rank());
  }
  Wake();
}

void SimulatedWorker::OnAssignment(const control::Assignment& assignment) {
  engine_->OnAssignment(now(), assignment);
  Wake();
}

void SimulatedWorker::OnPeerAddress(uint32_t member, const control::Lane& lane) {
  engine_->collectives()->OnAddress(now(), member, lane);
  Wake();
}

void SimulatedWorker::OnBarrier(const std::string& barrier_name, uint64_t, const absl::Status& status) {
  barriers_[barrier_name] = status;
}

void SimulatedWorker::OnGoodbye(const absl::Status& status) {
  left_ = status;
  engine_->Fail(now(), absl::FailedPreconditionError("the session was shut down"));
  Wake();
}

void SimulatedWorker::OnFailure(const absl::Status& fatal) { Fail(fatal); }

void SimulatedWorker::OnDeclare(const std::vector<control::TensorSpec>& tensors) { client_->Declare(now(), tensors); }

void SimulatedWorker::OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) {
  client_->TellAddress(now(), members, lane);
}

void SimulatedWorker::OnLost(uint32_t member, const absl::Status& why) {
  client_->BreakSession(now(), client_->session_id(), member, why);
}

void SimulatedWorker::OnFailed(const absl::Status& why) {
  client_->Fail(now(), why);
  Fail(why);
}

void SimulatedWorker::Fail(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  engine_->Fail(now(), why);
  for (auto& [barrier_name, outcome] : barriers_) {
    if (!outcome) outcome = why;
  }
  Wake();
}

}  // namespace byteps
