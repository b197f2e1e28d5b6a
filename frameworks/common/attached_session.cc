#include "frameworks/common/attached_session.h"

namespace byteps::binding {

void AttachedSession::Attach(std::shared_ptr<const Library> library, bps_session* session) {
  std::unique_lock lock(attaching_);
  library_ = std::move(library);
  session_ = session;
}

void AttachedSession::Detach(const bps_session* session) {
  std::unique_lock lock(attaching_);
  if (session_ == session) session_ = nullptr;
}

Outcome AttachedSession::Take(const Library& library, bps_status* status) {
  if (status == nullptr) return {};
  Outcome outcome{library.bps_status_code(status), library.bps_status_message(status)};
  library.bps_status_free(status);
  return outcome;
}

AttachedSession& TheSession() {
  static auto* const session = new AttachedSession;
  return *session;
}

}  // namespace byteps::binding
