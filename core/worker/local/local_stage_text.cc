// What the local stage says of its state: who is missing, and a description for the log.
#include "absl/strings/str_cat.h"
#include "core/worker/local/local_stage.h"

namespace byteps {

void LocalStage::AddEndpoints(std::vector<Endpoint*>* all) {
  if (!stopped_) all->push_back(endpoint_.get());
}

std::string LocalStage::WhoIsMissing(const Operation& operation) const {
  if (operation.by_gpus) return next_ == nullptr ? "" : next_->WhoIsMissing(operation);
  const LocalRound* round = rounds_.FindOf(operation);
  if (round == nullptr) return "it has not begun";
  if (round->awaited_parts != 0) return absl::StrCat(round->awaited_parts, " of its parts are not ready here");
  if (!round->AllOffered())
    return "not submitted by " + neighbours_->Describe([&](size_t index) { return !round->reports[index].offered; });
  if (round->beyond) {
    if (std::string text = next_->WhoIsMissing(operation); !text.empty()) return text;
  }
  if (next_ != nullptr && role_->Small(*round)) {
    return "no result from " + neighbours_->description(role_->Leader(operation));
  }
  const std::string text =
      "not finished by " + neighbours_->Describe([&](size_t index) { return !round->reports[index].ended; });
  if (!work_.Queued(round)) return text;
  return absl::StrCat(text, "; here scheduler \"", work_.scheduler_name(), "\" has not given out what is to be done");
}

std::string LocalStage::Describe() const { return neighbours_->Describe() + rounds_.Describe(); }

}  // namespace byteps
