#include "core/worker/device/device_stage.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace byteps {
namespace {

bool Reads(const GpuRound& gpu, const Areas& areas) { return gpu.input.on_device && areas.source.bytes != 0; }
bool Writes(const GpuRound& gpu, const Areas& areas) { return gpu.output.on_device && areas.target.bytes != 0; }

// The same bytes of another area.
Payload Moved(Payload payload, const Payload& from, const Payload& to) {
  if (payload.bytes != 0) payload.address = to.address + (payload.address - from.address);
  payload.device = to.device;
  return payload;
}

}  // namespace

DeviceStage::~DeviceStage() {
  Stop();
  areas_.clear();
  outgrown_.clear();
  for (auto& [index, lane] : lanes_) {
    lane.flying.clear();
    for (bps_device_stream stream : {lane.to_host, lane.to_device}) {
      if (stream != nullptr) lane.opened.gpu->StreamDestroy(stream).IgnoreError();
    }
  }
}

DeviceStage::Round* DeviceStage::Find(Operation* operation) const {
  const auto found = rounds_.find(operation);
  return found == rounds_.end() ? nullptr : found->second.get();
}

std::unique_ptr<DeviceStage::Round> DeviceStage::NewRound() {
  if (spare_.empty()) return std::make_unique<Round>();
  std::unique_ptr<Round> round = std::move(spare_.back());
  spare_.pop_back();
  std::vector<Part> parts = std::move(round->parts);
  parts.clear();
  *round = Round();
  round->parts = std::move(parts);
  return round;
}

absl::StatusOr<DeviceStage::Lane*> DeviceStage::LaneOf(const std::shared_ptr<Gpu>& gpu) {
  Lane& lane = lanes_[gpu->index()];
  if (lane.to_device != nullptr) return &lane;
  absl::StatusOr<Gpus::Opened> opened = gpus_->Get(gpu->index());
  if (!opened.ok()) return opened.status();
  lane.opened = *std::move(opened);
  for (bps_device_stream* stream : {&lane.to_host, &lane.to_device}) {
    absl::StatusOr<bps_device_stream> made = gpu->StreamCreate(stream == &lane.to_device ? 1 : 0);
    if (!made.ok()) return made.status();
    *stream = *made;
  }
  return &lane;
}

// ---- Down: out of the device ----

void DeviceStage::Begin(Time now, Operation* operation, const Areas& areas, PartRange range) {
  if (operation->asked.gpu == nullptr || operation->by_gpus) return RelayStage::Begin(now, operation, areas, range);
  now_ = now;
  std::unique_ptr<Round> made = NewRound();
  Round* round = made.get();
  round->operation = operation;
  round->gpu = operation->asked.gpu;
  round->asked = areas;
  round->range = range;
  rounds_[operation] = std::move(made);
  order_.push_back(round);
  poll_ = kLeastPoll;
  if (absl::Status status = PlaceOnHost(round); !status.ok()) {
    round->broken = status;
    return;
  }
  round->begun = true;
  next()->Begin(now, operation, round->host, range);
}

// Where the next stage finds its bytes and leaves its results.
absl::Status DeviceStage::PlaceOnHost(Round* round) {
  const GpuRound& gpu = *round->gpu;
  round->host = round->asked;
  // Pinned memory of the caller is the host's, too.
  round->host.source.device = round->host.target.device = Device();
  const bool reads = Reads(gpu, round->asked), writes = Writes(gpu, round->asked);
  for (const auto& [wanted, end] : {std::pair(reads, &gpu.input), std::pair(writes || gpu.finished, &gpu.output)}) {
    if (!wanted) continue;
    if (absl::StatusOr<Lane*> lane = LaneOf(end->gpu); !lane.ok()) return lane.status();
  }
  if ((!reads && !writes) || GoesDirect(round)) return absl::OkStatus();
  const absl::StatusOr<Area*> area = AreaOf(*round);
  if (!area.ok()) return area.status();
  const auto place = [&](Payload* payload, std::shared_ptr<Buffer>* buffer) {
    payload->address = (*area)->memory->data();
    *buffer = (*area)->memory->buffer();
  };
  if (reads) place(&round->host.source, &round->host.source_buffer);
  if (writes) place(&round->host.target, &round->host.target_buffer);
  return absl::OkStatus();
}

// Its pinned memory; made with the first operation that needs it.
absl::StatusOr<DeviceStage::Area*> DeviceStage::AreaOf(const Round& round) {
  const Tensor& tensor = *round.operation->asked.tensor;
  Area& area = areas_[&tensor];
  if (area.memory != nullptr && !area.memory->buffer()->exchanged()) return &area;
  const std::shared_ptr<Gpu>& owner = Reads(*round.gpu, round.asked) ? round.gpu->input.gpu : round.gpu->output.gpu;
  absl::StatusOr<std::unique_ptr<PinnedArea>> made = PinnedArea::Make(owner, buffers_, tensor.bytes());
  if (!made.ok()) return Annotate(made.status(), tensor.Describe());
  // To give pinned memory back waits for all streams.
  if (area.memory != nullptr) outgrown_.push_back(std::move(area.memory));
  area.memory = *std::move(made);
  return &area;
}

bool DeviceStage::GoesDirect(Round* round) {
  const GpuRound& gpu = *round->gpu;
  Areas areas = round->host;
  const auto place = [&](const GpuRound::End& end, Payload* payload, const DeviceAllocation** allocation) {
    payload->device = {BPS_CUDA, end.gpu->index()};
    *allocation = &end.allocation;
    return lanes_.at(end.gpu->index()).opened.remote;
  };
  if (Reads(gpu, round->asked) && !place(gpu.input, &areas.source, &areas.source_allocation)) return false;
  if (Writes(gpu, round->asked) && !place(gpu.output, &areas.target, &areas.target_allocation)) return false;
  if (!next()->TakesDevice(*round->operation, areas)) return false;
  round->host = areas;
  round->direct = true;
  return true;
}

void DeviceStage::Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) {
  Round* round = Find(operation);
  if (round == nullptr) return RelayStage::Push(now, operation, part, source, target);
  const bool copied = Reads(*round->gpu, round->asked) && !round->direct;
  const std::byte* from = copied ? source.address : nullptr;
  round->parts.push_back({part, Moved(source, round->asked.source, round->host.source),
                          Moved(target, round->asked.target, round->host.target), from});
  if (round->ready) Start(round);
}

// Has everything ended that was in the caller's streams at the submission, and every copy out of its area?
absl::StatusOr<bool> DeviceStage::Ready(Round* round) {
  const auto area = areas_.find(round->operation->asked.tensor);
  const std::shared_ptr<GpuRound> last = area == areas_.end() ? nullptr : area->second.last;
  for (const GpuEvent* event :
       {&round->gpu->input.ready, &round->gpu->output.ready, last == nullptr ? nullptr : &last->finished}) {
    if (event == nullptr || !*event) continue;
    absl::StatusOr<bool> ready = event->Query();
    if (!ready.ok() || !*ready) return ready;
  }
  if (last != nullptr) area->second.last = nullptr;
  return true;
}

bool DeviceStage::LookForReady() {
  bool worked = false;
  // A stream runs in order: what is behind an operation that is not ready is not ready either. Each GPU has a default
  // stream, which is NULL for all of them.
  blocked_.clear();
  for (size_t i = 0; i < order_.size(); ++i) {
    Round* round = order_[i];
    if (round->ready || round->ended || !round->begun || round->through || !round->broken.ok()) continue;
    const GpuRound::End& end = round->gpu->input.ready ? round->gpu->input : round->gpu->output;
    const std::pair<const Gpu*, const void*> stream(end.gpu.get(), end.stream);
    if (std::find(blocked_.begin(), blocked_.end(), stream) != blocked_.end()) continue;
    const absl::StatusOr<bool> ready = Ready(round);
    if (!ready.ok()) {
      round->broken = ready.status();
    } else if (*ready) {
      round->ready = worked = true;
      Start(round);
    } else {
      blocked_.push_back(stream);
    }
  }
  return worked;
}

// Its parts may go.
void DeviceStage::Start(Round* round) {
  if (Reads(*round->gpu, round->asked) && !round->direct) {
    std::vector<Round*>& waiting = lanes_.at(round->gpu->input.gpu->index()).waiting;
    if (std::find(waiting.begin(), waiting.end(), round) == waiting.end()) waiting.push_back(round);
    return;
  }
  while (round->started < round->parts.size()) {
    const Part& part = round->parts[round->started++];
    next()->Push(now_, round->operation, part.part, part.source, part.target);
  }
}

bool DeviceStage::StartCopies(Lane* lane) {
  bool worked = false;
  while (!lane->waiting.empty() && lane->flying.size() < kCopiesAhead && lane->bytes_flying < kBytesAhead) {
    const auto best = std::max_element(lane->waiting.begin(), lane->waiting.end(), [](const Round* a, const Round* b) {
      return std::pair(a->operation->asked.priority, b->operation->id) <
             std::pair(b->operation->asked.priority, a->operation->id);
    });
    Round* round = *best;
    if (!round->broken.ok() || round->through || round->started == round->parts.size()) {
      lane->waiting.erase(best);
      continue;
    }
    StartCopy(lane, round);
    worked = true;
  }
  return worked;
}

void DeviceStage::StartCopy(Lane* lane, Round* round) {
  const size_t index = round->started++;
  const Part& part = round->parts[index];
  absl::StatusOr<GpuEvent> copied = lane->opened.events->Take();
  absl::Status status = copied.status();
  if (status.ok()) {
    status = lane->opened.gpu->CopyToHost(part.source.address, part.from, part.source.bytes, lane->to_host);
  }
  if (status.ok()) status = copied->Record(lane->to_host);
  if (!status.ok()) {
    round->broken = status;
    return;
  }
  ++round->copying;
  lane->bytes_flying += part.source.bytes;
  lane->flying.push_back({round, index, *std::move(copied)});
}

bool DeviceStage::TakeCopied(Lane* lane) {
  bool worked = false;
  while (!lane->flying.empty()) {
    const absl::StatusOr<bool> copied = lane->flying.front().copied.Query();
    if (copied.ok() && !*copied) break;
    worked = true;
    const Copy copy = std::move(lane->flying.front());
    lane->flying.pop_front();
    if (copy.round == nullptr) continue;
    Round* round = copy.round;
    const Part& part = round->parts[copy.index];
    --round->copying;
    lane->bytes_flying -= part.source.bytes;
    if (!copied.ok() && round->broken.ok()) round->broken = copied.status();
    if (!round->broken.ok() || round->through) continue;
    next()->Push(now_, round->operation, part.part, part.source, part.target);
  }
  if (lane->flying.empty()) lane->bytes_flying = 0;
  return worked;
}

// ---- Up: into the device ----

void DeviceStage::OnPartHome(Operation* operation, uint32_t part, const Payload& result) {
  Round* round = Find(operation);
  if (round == nullptr) return RelayStage::OnPartHome(operation, part, result);
  if (!round->broken.ok() || result.bytes == 0 || !Writes(*round->gpu, round->asked)) return;
  if (round->direct) {
    if (result.device.type == BPS_CPU) round->broken = CopyHome(round, part, result);
    return;
  }
  const Payload target = Moved(result, round->host.target, round->asked.target);
  Lane& lane = lanes_.at(round->gpu->output.gpu->index());
  absl::Status status = lane.opened.gpu->CopyToDevice(target.address, result.address, result.bytes, lane.to_device);
  round->wrote = true;
  if (!status.ok()) round->broken = status;
}

absl::Status DeviceStage::CopyHome(Round* round, uint32_t part, const Payload& result) {
  const absl::StatusOr<Area*> area = AreaOf(*round);
  if (!area.ok()) return area.status();
  const Tensor& tensor = *round->operation->asked.tensor;
  const uint64_t offset = tensor.cut->first(part) * tensor.element_bytes();
  std::byte* const pinned = (*area)->memory->data() + offset;
  std::memcpy(pinned, result.address, result.bytes);
  round->wrote = true;
  Lane& lane = lanes_.at(round->gpu->output.gpu->index());
  return lane.opened.gpu->CopyToDevice(round->asked.target.address + offset, pinned, result.bytes, lane.to_device);
}

void DeviceStage::OnGivingUp(Operation* operation, const absl::Status& why, bool told) {
  if (Round* round = Find(operation); round != nullptr) GiveUp(round, why);
  RelayStage::OnGivingUp(operation, why, told);
}

void DeviceStage::OnStageDone(Operation* operation, const absl::Status& outcome) {
  Round* round = Find(operation);
  if (round == nullptr) return RelayStage::OnStageDone(operation, outcome);
  round->through = true;
  if (!outcome.ok()) round->outcome = outcome;
  Conclude(round);
}

// What was written, and what the root of a broadcast owes itself, is put into the stream; the caller's stream waits.
absl::Status DeviceStage::FinishResult(Round* round) {
  const Submission& asked = round->operation->asked;
  if (!round->gpu->output.on_device) return absl::OkStatus();
  Lane& lane = lanes_.at(round->gpu->output.gpu->index());
  absl::Status status;
  const bool own_copy = round->gpu->input.on_device && round->asked.target.bytes == 0 && asked.output != asked.input;
  if (own_copy && asked.tensor->bytes() != 0 && round->outcome.ok()) {
    status = lane.opened.gpu->CopyWithin(asked.output, asked.input, asked.tensor->bytes(), lane.to_device);
  }
  if (status.ok() && round->direct && round->outcome.ok()) status = lane.opened.gpu->FlushRemote();
  if (status.ok()) status = round->gpu->finished.Record(lane.to_device);
  if (status.ok() && round->outcome.ok()) status = round->gpu->Finish();
  return status;
}

void DeviceStage::Conclude(Round* round) {
  if (round->finishing) return;
  round->finishing = true;
  if (!round->broken.ok() && round->outcome.ok()) round->outcome = round->broken;
  if (round->outcome.ok() || round->wrote) {
    const absl::Status status = FinishResult(round);
    if (!status.ok() && round->outcome.ok()) round->outcome = status;
    if (!status.ok()) round->wrote = false;
  }
  if (!round->outcome.ok() || !round->gpu->output.on_device) return;
  round->wrote = true;
  if (const auto area = areas_.find(round->operation->asked.tensor); area != areas_.end())
    area->second.last = round->gpu;
  // In this order: who sees the request enqueued may submit the tensor again.
  sink_->OnEnqueued(round->operation);
  round->operation->asked.request->Advance(RequestState::kEnqueued);
}

// ---- Ends ----

void DeviceStage::GiveUp(Round* round, const absl::Status& why) {
  if (round->outcome.ok()) round->outcome = why;
  round->release_at = std::min(round->release_at, After(now_, kReleaseTime));
}

void DeviceStage::Abort(Time now, Operation* operation, const absl::Status& why) {
  Round* round = Find(operation);
  now_ = now;
  // What only waits for its copies to the device has its result: it ends in a moment, and well, or with the GPU.
  if (round != nullptr) round->release_at = std::min(round->release_at, After(now, kReleaseTime));
  if (round == nullptr || !round->through) next()->Abort(now, operation, why);
}

void DeviceStage::Withdraw(Time now, Operation* operation, const absl::Status& why) {
  Round* round = Find(operation);
  now_ = now;
  if (round != nullptr) round->release_at = std::min(round->release_at, After(now, kReleaseTime));
  if (round == nullptr || !round->through) next()->Withdraw(now, operation, why);
}

// Failures of the device: the other ranks hear of them from the next stage.
bool DeviceStage::TellBroken() {
  bool worked = false;
  for (size_t i = 0; i < order_.size(); ++i) {
    Round* round = order_[i];
    if (round->broken.ok() || round->release_at != kNever || round->ended) continue;
    worked = true;
    const absl::Status why = round->broken;
    GiveUp(round, why);
    sink_->OnGivingUp(round->operation, why, false);
    if (!round->through) next()->Abort(now_, round->operation, why);
  }
  return worked;
}

bool DeviceStage::LookForEnds() {
  bool worked = false;
  for (size_t i = 0; i < order_.size();) {
    Round* round = order_[i];
    bool ends = round->through && round->copying == 0;
    if (ends && round->wrote) {
      const absl::StatusOr<bool> finished = round->gpu->finished.Query();
      ends = !finished.ok() || *finished;
      if (!finished.ok() && round->outcome.ok()) round->outcome = finished.status();
    }
    if (!ends && round->through && now_ >= round->release_at) {
      ends = true;
      BPS_LOG(*log_, kWarning) << DescribeOperation(*round->operation)
                               << " is given up; its copies in the GPU's streams have not ended";
      if (round->outcome.ok()) round->outcome = absl::DeadlineExceededError("its copies to the GPU have not ended");
    }
    if (!ends) {
      ++i;
      continue;
    }
    worked = true;
    Operation* operation = round->operation;
    const absl::Status outcome = round->outcome;
    if (outcome.ok()) {
      for (uint32_t part = round->range.first; part < round->range.last; ++part) {
        sink_->OnPartHome(operation, part, Payload());
      }
    }
    Forget(round);
    sink_->OnStageDone(operation, outcome);
  }
  return worked;
}

void DeviceStage::Forget(Round* round) {
  for (auto& [index, lane] : lanes_) {
    std::erase(lane.waiting, round);
    for (Copy& copy : lane.flying) {
      if (copy.round == round) copy.round = nullptr;
    }
  }
  std::erase(order_, round);
  const auto found = rounds_.find(round->operation);
  spare_.push_back(std::move(found->second));
  rounds_.erase(found);
  spare_.back()->gpu = nullptr;
  spare_.back()->asked = spare_.back()->host = Areas();
}

void DeviceStage::Drop(Operation* operation) {
  if (Round* round = Find(operation); round != nullptr) Forget(round);
  next()->Drop(operation);
}

void DeviceStage::Stop() {
  if (std::exchange(stopped_, true)) return;
  const auto waits = [&] {
    for (auto& [index, lane] : lanes_) {
      while (!lane.flying.empty()) {
        const absl::StatusOr<bool> copied = lane.flying.front().copied.Query();
        if (copied.ok() && !*copied) return true;
        lane.flying.pop_front();
      }
    }
    return std::any_of(order_.begin(), order_.end(), [](const Round* round) {
      if (!round->finishing || !round->wrote) return false;
      const absl::StatusOr<bool> finished = round->gpu->finished.Query();
      return finished.ok() && !*finished;
    });
  };
  for (const Time until = After(Now(), kReleaseTime); waits();) {
    if (Now() >= until) {
      BPS_LOG(*log_, kError) << "copies in the GPU's streams have not ended when the session did";
      return;
    }
    ::sched_yield();
  }
}

// ---- Progress ----

bool DeviceStage::Run(Time now) {
  if (order_.empty()) return false;
  now_ = now;
  bool worked = LookForReady();
  for (auto& [index, lane] : lanes_) {
    worked |= TakeCopied(&lane);
    worked |= StartCopies(&lane);
  }
  worked |= TellBroken();
  worked |= LookForEnds();
  poll_ = worked ? kLeastPoll : std::min(2 * poll_, kMostPoll);
  return worked;
}

Time DeviceStage::NextTimer() const {
  const bool device = std::any_of(order_.begin(), order_.end(), [](const Round* round) {
    return !round->ready || round->copying != 0 || round->through || round->started != round->parts.size() ||
           !round->broken.ok();
  });
  return device && !stopped_ ? After(now_, poll_) : kNever;
}

std::string DeviceStage::WhoIsMissing(const Operation& operation) const {
  const Round* round = Find(const_cast<Operation*>(&operation));
  if (round == nullptr) return RelayStage::WhoIsMissing(operation);
  const GpuRound::End& end = round->gpu->input.gpu != nullptr ? round->gpu->input : round->gpu->output;
  if (!round->ready) {
    return absl::StrCat("what was in the caller's stream of ", end.gpu->name(), " when it was submitted has not ended");
  }
  if (round->copying != 0) return absl::StrCat("a copy from ", end.gpu->name(), " to the host has not ended");
  if (round->through) return absl::StrCat("the copies to ", round->gpu->output.gpu->name(), " have not ended");
  return next()->WhoIsMissing(operation);
}

}  // namespace byteps
