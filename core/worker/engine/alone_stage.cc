#include "core/worker/engine/alone_stage.h"

#include <algorithm>
#include <cstring>

#include "core/base/time.h"

namespace byteps {
namespace {

// Copied while submitting: costs less than handing it to another thread would.
constexpr uint64_t kSmall = 64 * 1024;

}  // namespace

void AloneStage::Start(Time, Operation* operation) {
  if (operation->asked.tensor->bytes() <= kSmall) {
    Copy(operation);
  } else {
    queue_.push_back(operation);
  }
}

void AloneStage::Abort(Time, Operation* operation, const absl::Status& why) {
  Drop(operation);
  sink_->OnStageDone(operation, why);
}

void AloneStage::Drop(Operation* operation) {
  queue_.erase(std::remove(queue_.begin(), queue_.end(), operation), queue_.end());
}

bool AloneStage::Run(Time) {
  if (queue_.empty()) return false;
  Operation* operation = queue_.front();
  queue_.pop_front();
  Copy(operation);
  return true;
}

Time AloneStage::NextTimer() const { return queue_.empty() ? kNever : 0; }

void AloneStage::Copy(Operation* operation) {
  operation->asked.request->Advance(RequestState::kActive);
  const Submission& asked = operation->asked;
  if (asked.output != asked.input && asked.tensor->bytes() != 0) {
    std::memcpy(asked.output, asked.input, asked.tensor->bytes());
  }
  sink_->OnStageDone(operation, absl::OkStatus());
}

}  // namespace byteps
