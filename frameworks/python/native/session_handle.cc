#include "frameworks/python/native/session_handle.h"

#include <unistd.h>

#include <mutex>
#include <string>
#include <utility>

#include "frameworks/python/native/status_error.h"

namespace byteps::python {

SessionHandle::SessionHandle(std::shared_ptr<const Library> library, bps_session* session)
    : library_(std::move(library)), process_(getpid()), session_(session) {}

SessionHandle::~SessionHandle() { Close(); }

bps_status* SessionHandle::Shutdown(int64_t timeout_ms) {
  RefuseInForkedChild();
  std::shared_lock lock(closing_);
  return session_ == nullptr ? nullptr : library_->bps_shutdown(session_, timeout_ms);
}

void SessionHandle::Close() {
  if (IsForkedChild()) return;
  std::unique_lock lock(closing_, std::try_to_lock);
  if (!lock.owns_lock()) {
    // A caller is inside, perhaps in a barrier that no other caller will reach. Leaving the job ends such waits.
    {
      std::shared_lock inside(closing_);
      if (session_ != nullptr) library_->bps_status_free(library_->bps_shutdown(session_, /*timeout_ms=*/1));
    }
    lock.lock();
  }
  if (session_ == nullptr) return;
  if (bps_status* refused = library_->bps_close(session_)) {
    // Inside a callback of the library, which has logged it: the session stays open.
    library_->bps_status_free(refused);
    return;
  }
  session_ = nullptr;
}

void SessionHandle::RefuseInForkedChild() const {
  if (!IsForkedChild()) return;
  throw StatusError(BPS_FAILED_PRECONDITION,
                    "process " + std::to_string(getpid()) + " was forked from process " + std::to_string(process_) +
                        ", which opened this BytePS session; a forked child cannot use it. Start the child with the "
                        "start method \"spawn\" and call init() there, or leave communication to the parent.",
                    /*retryable=*/false);
}

void SessionHandle::RefuseIfClosed() const {
  if (session_ != nullptr) return;
  throw StatusError(BPS_FAILED_PRECONDITION, "the BytePS session was shut down; call init() to open another",
                    /*retryable=*/false);
}

}  // namespace byteps::python
