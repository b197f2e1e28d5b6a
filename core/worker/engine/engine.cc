#include "core/worker/engine/engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/worker/engine/admission.h"
#include "core/worker/engine/alone_stage.h"
#include "core/worker/tensor/flight_place.h"

namespace byteps {

Engine::Engine(EngineOptions options, EngineHandler* handler, Logger* log)
    : options_(options), handler_(handler), log_(log) {}

Engine::~Engine() {
  if (collectives_ != nullptr) collectives_->Stop(absl::CancelledError("the session was closed"));
  for (const std::unique_ptr<Stage>& stage : stages_) stage->Stop();
}

void Engine::UseAlone() {
  stages_.push_back(std::make_unique<AloneStage>());
  Link();
}

ServersStage& Engine::UseServers(Scheduler scheduler) {
  assignments_.UseCoordinator();
  servers_ = std::make_unique<ServersStage>(options_.servers, std::move(scheduler), log_);
  return *servers_;
}

void Engine::UseCollectives(CollectivesOptions options, PeerLinks::Open open) {
  CollectivesSink* sink = this;
  collectives_ = std::make_unique<Collectives>(std::move(options), std::move(open), sink, log_);
  if (!assignments_.coordinated() && !stages_.empty()) collectives_->StartAlone();
}

void Engine::UseLocal(Scheduler scheduler, Transport transport, EndpointOptions endpoint) {
  assignments_.UseCoordinator();
  local_ = std::make_unique<LocalStage>(options_.local, std::move(scheduler), std::move(transport), std::move(endpoint),
                                        log_);
}

void Engine::UseStage(std::string before, std::unique_ptr<Stage> stage) {
  added_.emplace_back(std::move(before), std::move(stage));
  if (!stages_.empty()) Link();
}

// Puts the stages that were added where they belong, and connects all.
void Engine::Link() {
  for (auto& [before, stage] : added_) {
    const auto at = before.empty() ? stages_.begin()
                                   : std::find_if(stages_.begin(), stages_.end(),
                                                  [&](const auto& each) { return each->name() == before; });
    if (at != stages_.end()) stages_.insert(at, std::move(stage));
  }
  added_.clear();
  stages_.front()->UseSink(static_cast<StageSink*>(this));
  for (size_t i = 1; i < stages_.size(); ++i) stages_[i - 1]->UseNext(stages_[i].get());
}

absl::Status Engine::Join(Time now, const control::Epoch& epoch, uint32_t member) {
  auto self = std::find_if(epoch.workers().begin(), epoch.workers().end(),
                           [&](const control::Member& candidate) { return candidate.member() == member; });
  if (self == epoch.workers().end()) {
    return absl::InternalError(absl::StrCat("the coordinator's list of workers lacks this one, member ", member));
  }
  size_ = static_cast<uint32_t>(epoch.workers_size());
  own_rank_ = static_cast<uint32_t>(self->rank());
  const uint32_t neighbours = LocalStage::SetOf(epoch, *self).size;
  const bool servers = epoch.local_sizes_size() != 1, local = !servers || neighbours > 1;
  if ((local && local_ == nullptr) || (servers && servers_ == nullptr)) {
    return absl::InternalError(
        absl::StrCat("the coordinator wants this worker to reduce ",
                     local && local_ == nullptr ? "with the others of its host" : "through servers",
                     ", for which it has opened no transport"));
  }
  paths_ = PathCosts(JobLinks::Of(epoch));
  if (collectives_ != nullptr) collectives_->Start(epoch, *self);
  ServersStage* const to_servers = servers ? servers_.get() : nullptr;
  LocalStage* const to_neighbours = local ? local_.get() : nullptr;
  neighbours_ = to_neighbours;
  if (local) stages_.push_back(std::move(local_));
  if (servers) stages_.push_back(std::move(servers_));
  local_.reset();
  servers_.reset();
  Link();
  if (to_servers != nullptr) {
    if (absl::Status status = to_servers->Join(now, epoch, *self); !status.ok()) return status;
  }
  return to_neighbours == nullptr ? absl::OkStatus() : to_neighbours->Join(now, epoch, *self);
}

bool Engine::ready() const {
  return !stages_.empty() && std::all_of(stages_.begin(), stages_.end(),
                                         [](const std::unique_ptr<Stage>& stage) { return stage->ready(); });
}

std::string Engine::missing() const {
  std::string text;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (!stage->ready()) absl::StrAppend(&text, text.empty() ? "" : ", ", stage->missing());
  }
  return text;
}

const std::vector<Endpoint*>& Engine::endpoints() {
  endpoints_.clear();
  for (const std::unique_ptr<Stage>& stage : stages_) stage->AddEndpoints(&endpoints_);
  if (collectives_ != nullptr) collectives_->AddEndpoints(&endpoints_);
  return endpoints_;
}

const std::vector<int>& Engine::descriptors() {
  descriptors_.clear();
  for (const std::unique_ptr<Stage>& stage : stages_) stage->AddDescriptors(&descriptors_);
  return descriptors_;
}

bool Engine::Sent() {
  const std::vector<Endpoint*>& all = endpoints();
  return std::all_of(all.begin(), all.end(), [](const Endpoint* endpoint) { return endpoint->Sent(); });
}

size_t Engine::TakeCompletions(std::vector<Completion>* to) {
  const size_t count = completions_.size();
  std::move(completions_.begin(), completions_.end(), std::back_inserter(*to));
  completions_.clear();
  return count;
}

bool Engine::TakesStages(const Collective& asked) const {
  const bool sums = asked.kind == CollectiveKind::kAllReduce && asked.reduction != BPS_ADASUM;
  if (!asked.set->is_all() || !(sums || asked.kind == CollectiveKind::kBroadcast)) return false;
  return paths_.Choose(asked.kind, asked.bytes()) != CollectivePath::kPeers;
}

std::string Engine::DescribeStages() const {
  std::string text;
  for (const std::unique_ptr<Stage>& stage : stages_) absl::StrAppend(&text, text.empty() ? "" : " > ", stage->name());
  return text;
}

// ---- Submissions ----

absl::Status Engine::Admit(const Submission& asked) const {
  if (asked.tensor == nullptr) return absl::InvalidArgumentError("tensor is NULL");
  if (asked.tensor->table() != &tensors_) return absl::InvalidArgumentError("the tensor belongs to another session");
  if (absl::Status status = CheckSubmission(asked, size_); !status.ok()) return status;
  const Tensor& tensor = *asked.tensor;
  if (collectives_ != nullptr) {
    if (absl::Status status = collectives_->joins().CheckMaySubmit(); !status.ok()) {
      return Annotate(status, tensor.Describe());
    }
  }
  if (!asked.given_up.ok()) {
    tensor.name().place().Await();
    return absl::OkStatus();
  }
  if (!tensor.name().place().Enter()) {
    return Retryable(absl::AlreadyExistsError(
        absl::StrCat("an operation on tensor \"", tensor.name().text(), "\" is still in flight on this rank")));
  }
  return absl::OkStatus();
}

void Engine::Withdraw(const Submission& asked) {
  FlightPlace& place = asked.tensor->name().place();
  asked.given_up.ok() ? place.Leave() : place.Forgo();
}

void Engine::Submit(Time now, Submission asked) {
  if (!failure_.ok()) {
    Withdraw(asked);
    completions_.push_back({std::move(asked.request), failure_});
    return;
  }
  if (!asked.given_up.ok()) {
    given_up_.push_back(std::move(asked));
    RunGivenUp(now);
    return;
  }
  Operation* operation = Take(now, std::move(asked));
  by_request_.emplace(operation->asked.request.get(), operation);
  SetAlarm(operation, operation->deadline);
  if (collectives_ != nullptr && collectives_->joins().any_absent()) {
    for (const uint32_t rank : collectives_->joins().absent()) TellAbsent(now, *operation, rank);
  }
  Tensor* tensor = operation->asked.tensor;
  if (collectives_ != nullptr) {
    if (const absl::Status clash = collectives_->BeginStaged(now, *operation); !clash.ok()) {
      return RefuseTaken(operation, Retryable(Annotate(clash, DescribeOperation(*operation))));
    }
  }
  if (!assignments_.CutFor(tensor, operation->round)) {
    if (!tensor->refusal.ok()) {
      End(operation, tensor->refusal);
    } else {
      assignments_.Await(operation);
    }
    return;
  }
  Begin(now, operation);
}

// From its end on, Fail ends the operation. If it throws, the request has ended here.
Operation* Engine::Take(Time now, Submission asked) {
  const std::shared_ptr<Request> request = asked.request;
  TensorName& name = asked.tensor->name();
  try {
    Operation* operation = std::pmr::polymorphic_allocator<>(&memory_).new_object<Operation>();
    std::unique_ptr<Operation, Deleter> owned(operation, Deleter{&memory_});
    operation->id = next_operation_++;
    operation->asked = std::move(asked);
    operation->round = name.rounds;
    operation->fingerprint = Fingerprint(operation->asked);
    operation->deadline = After(now, operation->asked.timeout);
    operation->NoteSubmitted();
    if (operations_.empty() && options_.stall_warning != 0) stall_look_ = After(now, options_.stall_warning);
    operations_.emplace(operation->id, std::move(owned));
    ++name.rounds;
    name.operation = operation;
    return operation;
  } catch (...) {
    name.place().Leave();
    completions_.push_back({request, absl::ResourceExhaustedError("there is no memory for the operation")});
    throw;
  }
}

void Engine::Begin(Time now, Operation* operation) {
  now_ = now;
  operation->asked.request->Advance(RequestState::kQueued);
  const Areas areas = AreasOf(*operation, own_rank_);
  const Tensor& tensor = *operation->asked.tensor;
  const uint32_t parts = PartCount(*operation);
  operation->Note(TimelineEvent::kBegun, now, parts);
  Stage& first = *stages_.front();
  first.Begin(now, operation, areas, {0, parts});
  for (uint32_t turn = 0; turn < parts; ++turn) {
    const uint32_t part = first.PartAt(*operation, turn);
    if (tensor.cut) {
      first.Push(now, operation, part, PartOf(areas.source, *tensor.cut, part),
                 PartOf(areas.target, *tensor.cut, part));
    } else {
      first.Push(now, operation, part, areas.source, areas.target);
    }
  }
}

void Engine::Cancel(Time now, const Request* request, const absl::Status& cause) {
  const absl::Status why = cause.ok() ? absl::CancelledError("cancelled by its caller") : cause;
  auto it = by_request_.find(request);
  if (it != by_request_.end()) return Abort(now, it->second, why);
  if (collectives_ != nullptr) collectives_->Cancel(now, request, why);
}

void Engine::CancelAll(Time now, const absl::Status& why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, operation] : operations_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) {
    if (auto it = operations_.find(id); it != operations_.end()) Abort(now, it->second.get(), why);
  }
  if (collectives_ != nullptr) collectives_->CancelAll(now, why);
}

void Engine::Abort(Time now, Operation* operation, const absl::Status& why) {
  if (root_copies_.Has(*operation)) return;  // it ends in a moment, and well
  if (!assignments_.Awaits(*operation)) return stages_.front()->Abort(now, operation, why);
  // No server knows of it, but the other ranks wait for this one: their servers are told as soon as they are known.
  assignments_.Forget(*operation);
  operation->asked.tensor->owed.push_back({operation->round, operation->fingerprint, why});
  End(operation, Retryable(Annotate(why, DescribeOperation(*operation))));
}

// ---- Assignments ----

// The cut has come: so the stages may tell the others of what was given up before.
void Engine::OnAssigned(Tensor* tensor) {
  const std::vector<Tensor::Owed> given_up = std::exchange(tensor->owed, {});
  for (const std::unique_ptr<Stage>& stage : stages_) stage->OnAssigned(tensor, given_up);
}

uint64_t Engine::BytesPerSecond() const {
  uint64_t rate = 0;
  for (const std::unique_ptr<Stage>& stage : stages_) rate = std::max(rate, stage->bytes_per_second());
  return rate;
}

void Engine::OnAssignment(Time now, const control::Assignment& assignment) {
  if (failure_.ok() && !stages_.empty()) assignments_.OnAssignment(now, assignment);
}

// ---- Progress ----

bool Engine::Poll(Time now) {
  if (!failure_.ok()) return false;
  now_ = now;
  assignments_.Declare();
  bool worked = false;
  for (const std::unique_ptr<Stage>& stage : stages_) worked |= stage->Run(now);
  if (collectives_ != nullptr) worked |= collectives_->Run(now);
  if (!root_copies_.empty()) {
    worked = true;
    if (Operation* copied = root_copies_.Run(); copied != nullptr) End(copied, absl::OkStatus());
  }
  worked |= CheckDeadlines(now);
  if (now >= stall_look_) CheckStalls(now);
  if (!given_up_.empty()) worked |= RunGivenUp(now);
  if (!fatal_.ok() && now >= fatal_at_) {
    const absl::Status why = fatal_;
    // Before the links close, which the others notice: what this member says of itself is the cause that they should
    // hear.
    handler_->OnFailed(why);
    Fail(now, why);
    return true;
  }
  return worked;
}

void Engine::SetAlarm(Operation* operation, Time at) {
  if (at != kNever) alarms_.emplace(at, operation->id);
}

bool Engine::CheckDeadlines(Time now) {
  bool worked = false;
  while (!alarms_.empty() && alarms_.begin()->first <= now) {
    auto it = operations_.find(alarms_.begin()->second);
    alarms_.erase(alarms_.begin());
    if (it == operations_.end()) continue;
    Operation* operation = it->second.get();
    if (!operation->failure.ok()) continue;
    if (operation->known && now < After(operation->deadline, kDeadlineGrace)) {
      SetAlarm(operation, After(operation->deadline, kDeadlineGrace));
      continue;
    }
    worked = true;
    const double seconds = static_cast<double>(operation->asked.timeout) / 1e9;
    Abort(now, operation,
          absl::DeadlineExceededError(absl::StrCat("not complete within ", seconds, " s: ", Awaited(*operation))));
  }
  return worked;
}

// The servers know the ranks that they miss, so they speak first where they know of the operation.
void Engine::CheckStalls(Time now) {
  stall_look_ = operations_.empty() ? kNever : After(now, options_.stall_warning / 2 + 1);
  for (auto& [id, operation] : operations_) {
    const Time waited = now - (operation->deadline - operation->asked.timeout);
    const Time patience = options_.stall_warning + (operation->known ? options_.stall_warning : 0);
    if (operation->stall_told || operation->deadline == kNever || waited < patience) continue;
    operation->stall_told = true;
    BPS_LOG(*log_, kWarning) << "stall: " << DescribeOperation(*operation) << ": waits for " << waited / kSecond
                             << " s: " << Awaited(*operation);
  }
}

std::string Engine::Awaited(const Operation& operation) const {
  if (assignments_.Awaits(operation)) return "the coordinator has not answered its declaration";
  if (!operation.failure.ok()) return absl::StrCat("it is being given up: ", operation.failure.message());
  const std::string missing = stages_.front()->WhoIsMissing(operation);
  return missing.empty() ? absl::StrCat("it waits in the stage ", stages_.front()->name()) : missing;
}

std::string Engine::DescribeWait(Time now, const Request* request) const {
  const auto it = by_request_.find(request);
  for (const Submission& asked : given_up_) {
    if (asked.request.get() == request) return "it comes behind the operation of its name that is in flight";
  }
  if (it == by_request_.end()) return collectives_ == nullptr ? "" : collectives_->DescribeWait(now, request);
  const Operation& operation = *it->second;
  std::string text = absl::StrCat(DescribeOperation(operation), ", is ",
                                  RequestStateName(static_cast<int32_t>(request->state())), ": ", Awaited(operation));
  const Time left = std::max<Time>(operation.deadline - now, 0) / kMillisecond;
  absl::StrAppend(&text, "; it goes on until its own deadline, in ", left, " ms");
  // This side cannot know which ranks have not come.
  if (operation.known) absl::StrAppend(&text, ", when the servers name the ranks that they miss");
  return text;
}

Time Engine::NextTimer() const {
  if (!failure_.ok()) return kNever;
  if (!root_copies_.empty() || assignments_.pending()) return 0;
  if (std::any_of(given_up_.begin(), given_up_.end(),
                  [](const Submission& asked) { return asked.tensor->name().place().free(); })) {
    return 0;
  }
  Time next = alarms_.empty() ? kNever : alarms_.begin()->first;
  if (!operations_.empty()) next = std::min(next, stall_look_);
  if (!fatal_.ok()) next = std::min(next, fatal_at_);
  for (const std::unique_ptr<Stage>& stage : stages_) next = std::min(next, stage->NextTimer());
  if (collectives_ != nullptr) next = std::min(next, collectives_->NextTimer());
  return next;
}

// ---- Ends ----

void Engine::OnStageDone(Operation* operation, const absl::Status& outcome) {
  if (outcome.ok() && RootCopies::Owes(*operation, own_rank_)) return root_copies_.Add(operation);
  End(operation, outcome);
}

void Engine::OnEnqueued(Operation* operation) {
  operation->left = true;
  TensorName& name = operation->asked.tensor->name();
  name.operation = nullptr;
  name.place().Leave();
}

void Engine::OnGivingUp(Operation* operation, const absl::Status& why, bool) {
  if (operation->failure.ok()) operation->failure = Retryable(Annotate(why, DescribeOperation(*operation)));
}

void Engine::OnCollectiveDone(std::shared_ptr<Request> request, const absl::Status& outcome) {
  completions_.push_back({std::move(request), outcome});
}

void Engine::OnStageFatal(const absl::Status& why, uint32_t member) {
  if (!fatal_.ok()) return;
  fatal_ = why;
  fatal_at_ = After(now_, options_.fatal_grace);
  handler_->OnLost(member, why);
}

void Engine::End(Operation* operation, const absl::Status& outcome) {
  TensorName& name = operation->asked.tensor->name();
  if (!outcome.ok() && collectives_ != nullptr) {
    collectives_->FailStaged(*operation, outcome);
    if (failure_.ok()) RememberFailed(*operation);
  }
  const std::shared_ptr<Request> request = std::move(operation->asked.request);
  by_request_.erase(request.get());
  if (collectives_ == nullptr || !collectives_->joins().Drop(request.get())) {
    completions_.push_back({request, outcome});
  }
  alarms_.erase({operation->deadline, operation->id});
  alarms_.erase({After(operation->deadline, kDeadlineGrace), operation->id});
  operation->Note(TimelineEvent::kEnded, now_, static_cast<uint64_t>(StatusCode(outcome)));
  const bool left = operation->left;
  if (!left) name.operation = nullptr;
  operations_.erase(operation->id);
  // Last: from here on the name may be submitted again.
  if (!left) name.place().Leave();
}

void Engine::EndRequests(const absl::Status& why) {
  if (failure_.ok()) failure_ = why;
  std::vector<uint64_t> ids;
  for (const auto& [id, operation] : operations_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) {
    const std::shared_ptr<Request>& request = operations_.at(id)->asked.request;
    if (request != nullptr) completions_.push_back({request, why});
  }
  by_request_.clear();  // they are not cancelled any more
  EndGivenUp(why);
  if (collectives_ == nullptr) return;
  for (const std::shared_ptr<Request>& request : collectives_->Disown(why)) completions_.push_back({request, why});
}

void Engine::DropStages() {
  if (collectives_ != nullptr) collectives_->DropCopies();
  neighbours_ = nullptr;
  stages_.clear();
}

void Engine::Fail(Time, const absl::Status& why) {
  if (!failure_.ok() || why.ok()) return;
  failure_ = why;
  root_copies_.Clear();
  // No registration outlives its transport, and no transport touches memory when this returns.
  for (const std::unique_ptr<Stage>& stage : stages_) stage->Stop();
  if (collectives_ != nullptr) collectives_->Stop(why);
  std::vector<uint64_t> ids;
  for (const auto& [id, operation] : operations_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) {
    Operation* operation = operations_.at(id).get();
    // No stage has what still waits for its assignment; before the membership is known there are no stages at all.
    if (!assignments_.Awaits(*operation)) stages_.front()->Drop(operation);
    End(operation, why);
  }
  EndGivenUp(why);
  assignments_.Clear();
  alarms_.clear();
}

}  // namespace byteps
