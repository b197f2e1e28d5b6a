#include "core/worker/device/device_stage.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/reduce/dtype.h"
#include "core/worker/collectives/scale.h"

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

// Where the elements are in the memory of the GPU that lie at `address` of an area of the tensor's elements there.
std::byte* InMemory(const Submission& asked, const Payload& area, std::byte* address) {
  if (asked.memory_dtype == 0) return address;
  const auto element = static_cast<uint64_t>(address - area.address) / asked.tensor->element_bytes();
  return area.address + element * DtypeSize(asked.memory_dtype);
}

// Is the input, or the result, to be multiplied?
bool ScalesInput(const Submission& asked) { return asked.scaled && asked.prescale != 1; }
bool ScalesResult(const Submission& asked) { return asked.scaled && asked.postscale != 1; }

}  // namespace

DeviceStage::~DeviceStage() { Stop(); }

DeviceStage::Round* DeviceStage::Find(Operation* operation) const {
  const auto found = rounds_.find(operation);
  return found == rounds_.end() ? nullptr : found->second.get();
}

std::unique_ptr<DeviceStage::Round> DeviceStage::NewRound() {
  if (spare_.empty()) return std::make_unique<Round>(this);
  std::unique_ptr<Round> round = std::move(spare_.back());
  spare_.pop_back();
  std::vector<Part> parts = std::move(round->parts);
  parts.clear();
  *round = Round(this);
  round->parts = std::move(parts);
  return round;
}

// ---- Down: out of the device ----

void DeviceStage::Begin(Time now, Operation* operation, const Areas& areas, PartRange range) {
  if (operation->asked.gpu == nullptr || operation->by_gpus) return RelayStage::Begin(now, operation, areas, range);
  now_ = now;
  std::unique_ptr<Round> made = NewRound();
  Round* round = made.get();
  round->operation = operation;
  round->place = lanes_->NextOrder();
  round->gpu = operation->asked.gpu;
  round->asked = areas;
  round->range = range;
  rounds_[operation] = std::move(made);
  order_.push_back(round);
  pace_.Note(true);
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
    if (absl::StatusOr<GpuLane*> lane = lanes_->Get(end->gpu); !lane.ok()) return lane.status();
  }
  const Submission& asked = round->operation->asked;
  // Not into the caller's input, but over what the result will overwrite anyway.
  const auto scale_aside = [&] {
    if (!ScalesInput(asked) || reads) return;
    round->host.source.address = round->host.target.address;
    round->host.source_buffer = round->host.target_buffer;
  };
  if (!reads && !writes) return scale_aside(), absl::OkStatus();
  if (GoesDirect(round)) return absl::OkStatus();
  const absl::StatusOr<Area*> area = AreaOf(round);
  if (!area.ok()) return area.status();
  const auto place = [&](Payload* payload, std::shared_ptr<Buffer>* buffer) {
    payload->address = (*area)->memory->data();
    *buffer = (*area)->memory->buffer();
  };
  if (reads) place(&round->host.source, &round->host.source_buffer);
  if (writes) place(&round->host.target, &round->host.target_buffer);
  round->converts_input = reads && Converts(*round, gpu.input.gpu, ScalesInput(asked));
  round->converts_result = writes && Converts(*round, gpu.output.gpu, ScalesResult(asked));
  scale_aside();
  return absl::OkStatus();
}

// Does the GPU do it on the way? (Casts have been asked for by the call.)
bool DeviceStage::Converts(const Round& round, const std::shared_ptr<Gpu>& gpu, bool scales) const {
  const Submission& asked = round.operation->asked;
  if (asked.memory_dtype != 0) return true;
  const uint32_t dtype = asked.tensor->dtype();
  return scales && gpu->Convert(nullptr, dtype, nullptr, dtype, 0, 1, nullptr).ok();
}

// Its pinned memory; taken with the first operation that needs it.
absl::StatusOr<DeviceStage::Area*> DeviceStage::AreaOf(Round* round) {
  const Tensor& tensor = *round->operation->asked.tensor;
  Area& area = areas_[&tensor];
  if (!std::exchange(round->has_area, true)) {
    ++area.rounds;
    area.again = area.memory != nullptr;
    area.used_at = now_;
  }
  if (area.memory != nullptr && !area.memory->buffer()->exchanged()) return &area;
  const std::shared_ptr<Gpu>& owner = Reads(*round->gpu, round->asked) ? round->gpu->input.gpu : round->gpu->output.gpu;
  if (area.memory == nullptr) GiveBackIdle();
  absl::StatusOr<std::unique_ptr<PinnedArea>> made = stock_->Take(now_, owner, tensor.bytes(), 0);
  if (!made.ok()) return Annotate(made.status(), tensor.Describe());
  if (area.memory != nullptr) stock_->GiveBack(now_, std::move(area.memory), 0);
  area.memory = *std::move(made);
  return &area;
}

// What tensors that are named anew for each operation leave behind would grow without end.
void DeviceStage::GiveBackIdle() {
  if (now_ < After(looked_at_, PinnedStock::kLookTime)) return;
  looked_at_ = now_;
  const auto once = [](const auto& entry) { return entry.second.memory != nullptr && !entry.second.again; };
  const Time keep = PinnedStock::KeepTime(static_cast<size_t>(std::count_if(areas_.begin(), areas_.end(), once)));
  absl::erase_if(areas_, [&](auto& entry) {
    Area& area = entry.second;
    if (!once(entry) || area.rounds != 0 || now_ < After(area.used_at, keep)) return false;
    if (area.last != nullptr) {
      const absl::StatusOr<bool> copied = area.last->finished.Query();
      if (!copied.ok() || !*copied) return false;
    }
    stock_->GiveBack(now_, std::move(area.memory), 0);
    return true;
  });
}

bool DeviceStage::GoesDirect(Round* round) {
  const GpuRound& gpu = *round->gpu;
  const Submission& asked = round->operation->asked;
  if (ScalesInput(asked) || ScalesResult(asked) || asked.memory_dtype != 0) return false;
  Areas areas = round->host;
  const auto place = [&](const GpuRound::End& end, Payload* payload, const DeviceAllocation** allocation) {
    payload->device = {BPS_CUDA, end.gpu->index()};
    *allocation = &end.allocation;
    return lanes_->Of(*end.gpu).opened.remote;
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
  const std::byte* from = copied ? InMemory(operation->asked, round->asked.source, source.address) : nullptr;
  round->parts.push_back({part, Moved(source, round->asked.source, round->host.source),
                          Moved(target, round->asked.target, round->host.target), from});
  if (round->ready) Start(round);
}

// Has every copy out of its area ended?
absl::StatusOr<bool> DeviceStage::AreaReady(const Round& round) {
  const auto area = areas_.find(round.operation->asked.tensor);
  if (area == areas_.end() || area->second.last == nullptr) return true;
  absl::StatusOr<bool> ready = area->second.last->finished.Query();
  if (ready.ok() && *ready) area->second.last = nullptr;
  return ready;
}

bool DeviceStage::LookForReady() {
  bool worked = false;
  busy_.Clear();
  for (size_t i = 0; i < order_.size(); ++i) {
    Round* round = order_[i];
    if (round->ready || round->ended || !round->begun || round->through || !round->broken.ok()) continue;
    if (busy_.Has(*round->gpu)) continue;
    const absl::StatusOr<const GpuRound::End*> unready = round->gpu->Unready();
    if (unready.ok() && *unready != nullptr) {
      busy_.Add(**unready);
      continue;
    }
    const absl::StatusOr<bool> ready = unready.ok() ? AreaReady(*round) : unready.status();
    if (!ready.ok()) {
      round->broken = ready.status();
    } else if (*ready) {
      round->ready = worked = true;
      Start(round);
    }
  }
  return worked;
}

// Its parts may go.
void DeviceStage::Start(Round* round) {
  if (Reads(*round->gpu, round->asked) && !round->direct)
    return lanes_->Add(&lanes_->Of(*round->gpu->input.gpu), round);
  while (round->started < round->parts.size()) Go(round, round->parts[round->started++]);
}

// Its bytes are on the host.
void DeviceStage::Go(Round* round, const Part& part) {
  const Submission& asked = round->operation->asked;
  if (ScalesInput(asked) && !round->converts_input && part.source.bytes != 0) {
    const Payload caller = Moved(part.source, round->host.source, round->asked.source);
    const std::byte* const from = part.from != nullptr ? part.source.address : caller.address;
    const Tensor& tensor = *asked.tensor;
    Scale(tensor.dtype(), asked.prescale, from, part.source.address, part.source.bytes / tensor.element_bytes());
  }
  next()->Push(now_, round->operation, part.part, part.source, part.target);
}

bool DeviceStage::NextPiece(Round* round, CopySource::Piece* piece) {
  if (!round->broken.ok() || round->through || round->started == round->parts.size()) return false;
  const Part& part = round->parts[round->started++];
  *piece = {part.source.address, part.from, part.source.bytes};
  if (round->converts_input) {
    const Submission& asked = round->operation->asked;
    piece->elements = part.source.elements;
    piece->to_dtype = asked.tensor->dtype();
    piece->from_dtype = asked.DtypeInMemory();
    piece->factor = asked.scaled ? asked.prescale : 1;
  }
  ++round->copying;
  return true;
}

// Pieces are copied in their order.
void DeviceStage::OnCopied(Round* round, const absl::Status& status) {
  const Part& part = round->parts[round->started - round->copying--];
  if (!status.ok() && round->broken.ok()) round->broken = status;
  if (round->broken.ok() && !round->through) Go(round, part);
}

// ---- Up: into the device ----

void DeviceStage::OnPartHome(Operation* operation, uint32_t part, const Payload& result) {
  Round* round = Find(operation);
  if (round == nullptr) return RelayStage::OnPartHome(operation, part, result);
  if (!round->broken.ok() || result.bytes == 0) return;
  const Submission& asked = operation->asked;
  if (ScalesResult(asked) && !round->converts_result) {
    const uint64_t elements = result.bytes / asked.tensor->element_bytes();
    Scale(asked.tensor->dtype(), asked.postscale, result.address, result.address, elements);
  }
  if (!Writes(*round->gpu, round->asked)) return;
  if (round->direct) {
    if (result.device.type == BPS_CPU) round->broken = CopyHome(round, part, result);
    return;
  }
  const Payload target = Moved(result, round->host.target, round->asked.target);
  std::byte* const to = InMemory(asked, round->asked.target, target.address);
  GpuLane& lane = lanes_->Of(*round->gpu->output.gpu);
  absl::Status status;
  if (round->converts_result) {
    status = lane.opened.gpu->Convert(to, asked.DtypeInMemory(), result.address, asked.tensor->dtype(),
                                      result.bytes / asked.tensor->element_bytes(), asked.scaled ? asked.postscale : 1,
                                      lane.to_device);
  } else {
    status = lane.opened.gpu->CopyToDevice(to, result.address, result.bytes, lane.to_device);
  }
  round->wrote = true;
  if (!status.ok()) round->broken = status;
}

absl::Status DeviceStage::CopyHome(Round* round, uint32_t part, const Payload& result) {
  const absl::StatusOr<Area*> area = AreaOf(round);
  if (!area.ok()) return area.status();
  const Tensor& tensor = *round->operation->asked.tensor;
  const uint64_t offset = tensor.cut->first(part) * tensor.element_bytes();
  std::byte* const pinned = (*area)->memory->data() + offset;
  std::memcpy(pinned, result.address, result.bytes);
  round->wrote = true;
  GpuLane& lane = lanes_->Of(*round->gpu->output.gpu);
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
  GpuLane& lane = lanes_->Of(*round->gpu->output.gpu);
  absl::Status status;
  const bool own_copy = round->gpu->input.on_device && round->asked.target.bytes == 0 && asked.output != asked.input;
  if (own_copy && asked.tensor->bytes() != 0 && round->outcome.ok()) {
    status = lane.opened.gpu->CopyWithin(asked.output, asked.input, asked.tensor->bytes(), lane.to_device);
    if (status.ok()) round->wrote = true;
  }
  if (status.ok() && round->direct && round->outcome.ok()) status = lane.opened.gpu->FlushRemote();
  // Behind a failure, too: it tells when the copies before it have ended.
  if (absl::Status recorded = round->gpu->finished.Record(lane.to_device); !recorded.ok()) {
    // A lost context copies nothing more.
    if (std::exchange(round->wrote, false) && !absl::IsDataLoss(recorded)) round->untold = true;
    if (status.ok()) status = recorded;
  }
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
    if (!status.ok()) round->release_at = std::min(round->release_at, After(now_, kReleaseTime));
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
    bool ends = round->through && round->copying == 0 && !round->untold;
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
  lanes_->Forget(round);
  if (round->has_area) {
    Area& area = areas_.at(round->operation->asked.tensor);
    --area.rounds;
    // A copy may still be under way to it, or out of it: then it stays where it is.
    if (!round->outcome.ok()) area.again = true;
    if (round->untold && area.memory != nullptr) stock_->PutAside(std::move(area.memory));
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
  const Time until = After(Now(), kReleaseTime);
  const auto waits = [&] {
    return std::any_of(order_.begin(), order_.end(), [](const Round* round) {
      if (!round->finishing || !round->wrote) return false;
      const absl::StatusOr<bool> finished = round->gpu->finished.Query();
      return finished.ok() && !*finished;
    });
  };
  for (bool copied = lanes_->Drain(until); !copied || waits();) {
    if (!copied || Now() >= until) {
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
  worked |= lanes_->Run();
  worked |= TellBroken();
  worked |= LookForEnds();
  pace_.Note(worked);
  return worked;
}

Time DeviceStage::NextTimer() const {
  const bool device = std::any_of(order_.begin(), order_.end(), [](const Round* round) {
    return !round->ready || round->copying != 0 || round->through || round->started != round->parts.size() ||
           !round->broken.ok();
  });
  return device && !stopped_ ? pace_.After(now_) : kNever;
}

std::string DeviceStage::WhoIsMissing(const Operation& operation) const {
  const Round* round = Find(const_cast<Operation*>(&operation));
  if (round == nullptr) return RelayStage::WhoIsMissing(operation);
  if (!round->ready) {
    std::string unready = round->gpu->DescribeUnready();
    return unready.empty() ? "the copies of the tensor's last result have not ended" : unready;
  }
  if (round->copying != 0) {
    return absl::StrCat("a copy from ", round->gpu->input.gpu->name(), " to the host has not ended");
  }
  if (round->through) {
    return round->gpu->output.on_device
               ? absl::StrCat("the copies to ", round->gpu->output.gpu->name(), " have not ended")
               : "its result is there";
  }
  return next()->WhoIsMissing(operation);
}

}  // namespace byteps
