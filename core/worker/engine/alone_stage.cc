#include "core/worker/engine/alone_stage.h"

#include <cstring>

#include "core/base/time.h"

namespace byteps {
namespace {

// What one Run copies, besides a part that is larger.
constexpr uint64_t kBytesPerRun = 64 * 1024;

}  // namespace

void AloneStage::Begin(Time, Operation* operation, const Areas&, PartRange range) { parts_[operation] = range.size(); }

void AloneStage::Push(Time, Operation* operation, uint32_t part, const Payload& source, const Payload& target) {
  operation->asked.request->Advance(RequestState::kActive);
  queue_.push_back({operation, part, source, target});
}

void AloneStage::Abort(Time, Operation* operation, const absl::Status& why) {
  Drop(operation);
  sink_->OnGivingUp(operation, why, false);
  sink_->OnStageDone(operation, why);
}

void AloneStage::Drop(Operation* operation) {
  parts_.erase(operation);
  std::erase_if(queue_, [&](const Copy& copy) { return copy.operation == operation; });
}

bool AloneStage::Run(Time) {
  bool worked = false;
  for (uint64_t copied = 0; !queue_.empty() && copied < kBytesPerRun;) {
    const Copy copy = queue_.front();
    queue_.pop_front();
    worked = true;
    if (copy.target.bytes != 0 && copy.target.address != copy.source.address) {
      std::memcpy(copy.target.address, copy.source.address, copy.target.bytes);
      copied += copy.target.bytes;
    }
    sink_->OnPartHome(copy.operation, copy.part, copy.target);
    const auto left = parts_.find(copy.operation);
    if (left == parts_.end() || --left->second != 0) continue;
    parts_.erase(left);
    sink_->OnStageDone(copy.operation, absl::OkStatus());
  }
  return worked;
}

Time AloneStage::NextTimer() const { return queue_.empty() ? kNever : 0; }

}  // namespace byteps
