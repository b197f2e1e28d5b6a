#include "frameworks/common/attached_session.h"

namespace byteps::binding {

void AttachedSession::Attach(std::shared_ptr<const Library> library, bps_session* session) {
  std::unique_lock lock(attaching_);
  FreeSets();
  library_ = std::move(library);
  session_ = session;
  number_.fetch_add(1, std::memory_order_acq_rel);
}

void AttachedSession::Detach(const bps_session* session) {
  std::unique_lock lock(attaching_);
  if (session_ != session) return;
  session_ = nullptr;
  FreeSets();
}

bps_status* AttachedSession::ProcessSet(const std::vector<int32_t>& ranks, bps_process_set** set) const {
  const std::lock_guard lock(making_sets_);
  const auto known = sets_.find(ranks);
  if (known != sets_.end()) {
    *set = known->second;
    return nullptr;
  }
  bps_process_set_args args = BPS_PROCESS_SET_ARGS_INIT;
  args.ranks = ranks.data();
  args.num_ranks = static_cast<int32_t>(ranks.size());
  if (bps_status* error = library_->bps_process_set_create(session_, &args, set)) return error;
  sets_.emplace(ranks, *set);
  return nullptr;
}

void AttachedSession::FreeSets() {
  for (const auto& [ranks, set] : sets_) left_.push_back(set);
  sets_.clear();
  std::erase_if(left_, [&](bps_process_set* set) {
    bps_status* error = library_->bps_process_set_free(set);
    library_->bps_status_free(error);
    return error == nullptr;
  });
}

Outcome AttachedSession::Take(const Library& library, bps_status* status) {
  if (status == nullptr) return {};
  Outcome outcome{library.bps_status_code(status), library.bps_status_message(status)};
  library.bps_status_free(status);
  return outcome;
}

AttachedSession& TheSession() {
  static auto* const kSession = new AttachedSession;
  return *kSession;
}

}  // namespace byteps::binding
