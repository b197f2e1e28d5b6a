#include "core/worker/device/staged_collectives.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace byteps {

StagedCollectives::~StagedCollectives() { Stop(); }

StagedCollectives::Copies* StagedCollectives::Find(const Request* request) const {
  const auto found = all_.find(request);
  return found == all_.end() ? nullptr : found->second.get();
}

// ---- Into the host ----

void StagedCollectives::Begin(Time now, const Collective& asked, int32_t own_rank, Time deadline) {
  now_ = now;
  auto made = std::make_unique<Copies>();
  Copies* copies = made.get();
  copies->request = asked.request;
  copies->gpu = asked.gpu;
  copies->urgency = asked.priority;
  copies->place = lanes_->NextOrder();
  copies->name = asked.id(own_rank) | 1;
  copies->input = asked.input;
  if (asked.gpu->input.on_device) copies->bytes = asked.bytes();
  copies->deadline = deadline;
  all_[asked.request.get()] = std::move(made);
  order_.push_back(copies);
  pace_.Note(true);
}

bool StagedCollectives::LookForReady() {
  bool worked = false;
  busy_.Clear();
  for (Copies* copies : order_) {
    if (copies->ready || copies->ended || !copies->broken.ok() || busy_.Has(*copies->gpu)) continue;
    const absl::StatusOr<const GpuRound::End*> unready = copies->gpu->Unready();
    if (unready.ok() && *unready != nullptr) {
      busy_.Add(**unready);
      continue;
    }
    worked = copies->ready = true;
    copies->broken = unready.ok() ? StartInput(copies) : unready.status();
  }
  return worked;
}

absl::Status StagedCollectives::StartInput(Copies* copies) {
  if (copies->bytes == 0) return absl::OkStatus();
  const absl::StatusOr<GpuLane*> lane = lanes_->Get(copies->gpu->input.gpu);
  if (!lane.ok()) return lane.status();
  absl::StatusOr<std::unique_ptr<PinnedArea>> area =
      stock_->Take(now_, copies->gpu->input.gpu, copies->bytes, copies->name);
  if (!area.ok()) return area.status();
  copies->input_area = *std::move(area);
  lanes_->Add(*lane, copies);
  return absl::OkStatus();
}

bool StagedCollectives::Copies::NextPiece(Piece* piece) {
  if (taken == bytes || ended || !broken.ok()) return false;
  *piece = {input_area->data() + taken, input + taken, std::min(kPiece, bytes - taken)};
  taken += piece->bytes;
  ++copying;
  return true;
}

void StagedCollectives::Copies::OnCopied(const absl::Status& status) {
  --copying;
  if (!status.ok() && broken.ok()) broken = status;
}

void StagedCollectives::Copies::OnUntold(const absl::Status& status) {
  untold_input = true;
  OnCopied(status);
}

// Rounds may end meanwhile.
bool StagedCollectives::TellRounds() {
  tell_.clear();
  for (const Copies* copies : order_) {
    if (!copies->told && !copies->ended && (copies->copied() || !copies->broken.ok())) {
      tell_.push_back(copies->request.get());
    }
  }
  for (const Request* request : tell_) {
    Copies* copies = Find(request);
    if (copies == nullptr || copies->ended) continue;
    copies->told = true;
    if (!copies->broken.ok()) {
      sink_->OnCopiesFailed(request, absl::Status(copies->broken));
    } else {
      sink_->OnInputCopied(request, copies->bytes == 0 ? copies->input : copies->input_area->data());
    }
  }
  return !tell_.empty();
}

// ---- Into the device ----

absl::StatusOr<std::byte*> StagedCollectives::Output(const Request* request, uint64_t bytes) {
  Copies* copies = Find(request);
  if (!copies->gpu->output.on_device || bytes == 0) return nullptr;
  if (absl::StatusOr<GpuLane*> lane = lanes_->Get(copies->gpu->output.gpu); !lane.ok()) return lane.status();
  absl::StatusOr<std::unique_ptr<PinnedArea>> area = stock_->Take(now_, copies->gpu->output.gpu, bytes, ~copies->name);
  if (!area.ok()) return area.status();
  copies->output_area = *std::move(area);
  return copies->output_area->data();
}

// The result is put into the stream; the caller's stream waits.
absl::Status StagedCollectives::StartResult(const Collective& asked, Copies* copies) {
  if (!copies->gpu->output.on_device) return absl::OkStatus();
  CollectiveResult& result = *asked.result;
  result.data = result.bytes == 0 ? nullptr : asked.output;
  const absl::StatusOr<GpuLane*> lane = lanes_->Get(copies->gpu->output.gpu);
  if (!lane.ok()) return lane.status();
  Gpu& gpu = *(*lane)->opened.gpu;
  absl::Status status;
  if (result.bytes != 0) {
    status = gpu.CopyToDevice(asked.output, copies->output_area->data(), result.bytes, (*lane)->to_device);
  }
  if (!status.ok()) return status;
  if (status = copies->gpu->finished.Record((*lane)->to_device); !status.ok()) {
    copies->untold_output = result.bytes != 0 && !absl::IsDataLoss(status);
    return status;
  }
  copies->writing = true;
  return copies->gpu->Finish();
}

void StagedCollectives::Fail(Copies* copies, const absl::Status& why) {
  if (copies->outcome.ok()) copies->outcome = Retryable(Annotate(why, copies->description));
}

void StagedCollectives::End(Time now, const Collective& asked, const absl::Status& outcome) {
  now_ = now;
  Copies* copies = Find(asked.request.get());
  copies->ended = true;
  ++ended_;
  pace_.Note(true);
  copies->outcome = outcome;
  if (outcome.ok()) {
    copies->description = asked.Describe();
    Fail(copies, StartResult(asked, copies));
  }
  // One whose result is in the stream ends in a moment, and well, or with the GPU.
  copies->release_at = After(copies->outcome.ok() ? std::max(now, copies->deadline) : now, kReleaseTime);
  if (copies->outcome.ok() && copies->writing) copies->request->Advance(RequestState::kEnqueued);
  MaybeLeave(copies);
}

bool StagedCollectives::Hurry(Time now, const Request* request) {
  Copies* copies = Find(request);
  if (copies == nullptr || !copies->ended) return false;
  copies->release_at = std::min(copies->release_at, After(now, kReleaseTime));
  return true;
}

// ---- Ends ----

bool StagedCollectives::MaybeLeave(Copies* copies) {
  bool over = copies->copying == 0 && !copies->untold_input && !copies->untold_output;
  if (over && copies->writing) {
    const absl::StatusOr<bool> finished = copies->gpu->finished.Query();
    if (finished.ok() && *finished) copies->writing = false;
    // A lost context copies nothing more.
    if (!finished.ok()) {
      copies->writing = false;
      Fail(copies, finished.status());
    }
    over = !copies->writing;
  }
  if (!over && now_ >= copies->release_at) {
    over = true;
    BPS_LOG(*log_, kWarning) << "a collective is given up; its copies in the GPU's streams have not ended";
    Fail(copies, absl::DeadlineExceededError("its copies to the GPU have not ended"));
  }
  if (over) Leave(copies);
  return over;
}

void StagedCollectives::Leave(Copies* copies) {
  lanes_->Forget(copies);
  const auto give_back = [&](std::unique_ptr<PinnedArea> area, bool in_use, uint64_t owner) {
    if (area == nullptr) return;
    in_use ? stock_->PutAside(std::move(area)) : stock_->GiveBack(now_, std::move(area), owner);
  };
  give_back(std::move(copies->input_area), copies->copying != 0 || copies->untold_input, copies->name);
  give_back(std::move(copies->output_area), copies->writing || copies->untold_output, ~copies->name);
  std::erase(order_, copies);
  if (copies->ended) --ended_;
  const auto found = all_.find(copies->request.get());
  const std::unique_ptr<Copies> over = std::move(found->second);
  all_.erase(found);
  sink_->OnCopiesEnded(std::move(over->request), over->outcome);
}

bool StagedCollectives::LookForEnds() {
  bool worked = false;
  for (size_t i = 0; i < order_.size();) {
    if (order_[i]->ended && MaybeLeave(order_[i])) {
      worked = true;
    } else {
      ++i;
    }
  }
  return worked;
}

void StagedCollectives::Stop() {
  if (std::exchange(stopped_, true)) return;
  const Time until = After(Now(), kReleaseTime);
  const bool copied = lanes_->Drain(until);
  for (Copies* copies : order_) {
    if (copied) copies->copying = 0;
    copies->release_at = 0;
  }
  while (!order_.empty()) {
    Copies* copies = order_.front();
    const absl::StatusOr<bool> finished = copies->writing ? copies->gpu->finished.Query() : true;
    if (finished.ok() && !*finished && Now() < until) {
      ::sched_yield();
    } else {
      MaybeLeave(copies);
    }
  }
}

std::vector<std::shared_ptr<Request>> StagedCollectives::Disown() {
  stopped_ = true;
  std::vector<std::shared_ptr<Request>> requests;
  for (const Copies* copies : order_) {
    if (copies->ended) requests.push_back(copies->request);
  }
  return requests;
}

// ---- Progress ----

bool StagedCollectives::Run(Time now) {
  if (order_.empty() || stopped_) return false;
  now_ = now;
  bool worked = LookForReady();
  worked |= lanes_->Run();
  worked |= TellRounds();
  worked |= LookForEnds();
  pace_.Note(worked);
  return worked;
}

Time StagedCollectives::NextTimer() const {
  const bool device = std::any_of(order_.begin(), order_.end(), [](const Copies* copies) {
    return copies->ended || !copies->told || copies->copying != 0;
  });
  return device && !stopped_ ? pace_.After(now_) : kNever;
}

std::string StagedCollectives::DescribeWait(const Request* request) const {
  const Copies* copies = Find(request);
  if (copies == nullptr) return "";
  if (copies->writing) {
    return absl::StrCat("the copy of its result to ", copies->gpu->output.gpu->name(), " has not ended");
  }
  if (!copies->ready && !copies->ended) {
    if (std::string unready = copies->gpu->DescribeUnready(); !unready.empty()) return unready;
  }
  if (copies->copying == 0 && copies->taken == copies->bytes) return "";
  return absl::StrCat("the copy of its input from ", copies->gpu->input.gpu->name(), " to the host has not ended");
}

}  // namespace byteps
