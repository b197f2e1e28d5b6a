#include "core/worker/device/gpu_lanes.h"

#include <sched.h>

namespace byteps {

GpuLanes::~GpuLanes() {
  for (auto& [index, lane] : lanes_) {
    lane.flying.clear();
    for (bps_device_stream stream : {lane.to_host, lane.to_device}) {
      if (stream != nullptr) lane.opened.gpu->StreamDestroy(stream).IgnoreError();
    }
  }
}

absl::StatusOr<GpuLane*> GpuLanes::Get(const std::shared_ptr<Gpu>& gpu) {
  GpuLane& lane = lanes_[gpu->index()];
  if (lane.to_device != nullptr) return &lane;
  absl::StatusOr<Gpus::Opened> opened = gpus_->Get(gpu->index());
  if (!opened.ok()) return opened.status();
  lane.opened = *std::move(opened);
  for (bps_device_stream* stream : {&lane.to_host, &lane.to_device}) {
    if (*stream != nullptr) continue;
    absl::StatusOr<bps_device_stream> made = gpu->StreamCreate(stream == &lane.to_device ? 1 : 0);
    if (!made.ok()) return made.status();
    *stream = *made;
  }
  return &lane;
}

void GpuLanes::Add(GpuLane* lane, CopySource* source) {
  if (std::find(lane->waiting.begin(), lane->waiting.end(), source) == lane->waiting.end()) {
    lane->waiting.push_back(source);
  }
}

void GpuLanes::Forget(const CopySource* source) {
  for (auto& [index, lane] : lanes_) {
    std::erase(lane.waiting, source);
    for (GpuLane::Copy& copy : lane.flying) {
      if (copy.source == source) copy.source = nullptr;
    }
  }
}

bool GpuLanes::Run() {
  bool worked = false;
  for (auto& [index, lane] : lanes_) {
    worked |= TakeCopied(&lane);
    worked |= StartCopies(&lane);
  }
  return worked;
}

bool GpuLanes::TakeCopied(GpuLane* lane) {
  bool worked = false;
  while (!lane->flying.empty()) {
    const absl::StatusOr<bool> copied = lane->flying.front().copied.Query();
    if (copied.ok() && !*copied) break;
    worked = true;
    const GpuLane::Copy copy = std::move(lane->flying.front());
    lane->flying.pop_front();
    lane->bytes_flying -= copy.bytes;
    if (copy.source != nullptr) copy.source->OnCopied(copied.status());
  }
  return worked;
}

bool GpuLanes::StartCopies(GpuLane* lane) {
  bool worked = false;
  while (!lane->waiting.empty() && lane->flying.size() < kCopiesAhead && lane->bytes_flying < kBytesAhead) {
    const auto best =
        std::max_element(lane->waiting.begin(), lane->waiting.end(), [](const CopySource* a, const CopySource* b) {
          return std::pair(a->priority(), b->order()) < std::pair(b->priority(), a->order());
        });
    CopySource* const source = *best;
    CopySource::Piece piece;
    if (!source->NextPiece(&piece)) {
      lane->waiting.erase(best);
      continue;
    }
    Start(lane, source, piece);
    worked = true;
  }
  return worked;
}

void GpuLanes::Start(GpuLane* lane, CopySource* source, const CopySource::Piece& piece) {
  absl::StatusOr<GpuEvent> copied = lane->opened.events->Take();
  absl::Status status = copied.status();
  Gpu& gpu = *lane->opened.gpu;
  if (status.ok() && piece.elements == 0) {
    status = gpu.CopyToHost(piece.to, piece.from, piece.bytes, lane->to_host);
  } else if (status.ok()) {
    status = gpu.Convert(piece.to, piece.to_dtype, piece.from, piece.from_dtype, piece.elements, piece.factor,
                         lane->to_host);
  }
  if (!status.ok()) return source->OnCopied(status);
  if (status = copied->Record(lane->to_host); !status.ok()) {
    // A lost context copies nothing more.
    return absl::IsDataLoss(status) ? source->OnCopied(status) : source->OnUntold(status);
  }
  lane->bytes_flying += piece.bytes;
  lane->flying.push_back({source, piece.bytes, *std::move(copied)});
}

bool GpuLanes::Drain(Time until) {
  // Behind the copies to the devices: those of an operation whose result is there in part have no event of their own.
  std::vector<GpuEvent> ends;
  for (auto& [index, lane] : lanes_) {
    if (lane.to_device == nullptr) continue;
    absl::StatusOr<GpuEvent> end = lane.opened.events->Take();
    // A lost context copies nothing more.
    if (end.ok() && end->Record(lane.to_device).ok()) ends.push_back(*std::move(end));
  }
  const auto flies = [&] {
    while (!ends.empty()) {
      const absl::StatusOr<bool> ended = ends.back().Query();
      if (ended.ok() && !*ended) return true;
      ends.pop_back();
    }
    for (auto& [index, lane] : lanes_) {
      while (!lane.flying.empty()) {
        const absl::StatusOr<bool> copied = lane.flying.front().copied.Query();
        if (copied.ok() && !*copied) return true;
        lane.bytes_flying -= lane.flying.front().bytes;
        lane.flying.pop_front();
      }
    }
    return false;
  };
  while (flies()) {
    if (Now() >= until) return false;
    ::sched_yield();
  }
  return true;
}

}  // namespace byteps
