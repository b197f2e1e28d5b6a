// session_handle.h - an open bps_session that cannot be closed while a caller is inside a call on it.
//
//     Check(library, handle->Use([&](bps_session* session) { return library.bps_declare(session, &args, &tensor); }));
//
// bps_close must be the last call on its session, but Python may call shutdown() on one thread while another is in the
// middle of an operation. Use() holds the session open for the length of one call; Close() waits for those inside.
//
// After a fork the child owns a copy of this object and none of the threads behind it: there Use() throws, and neither
// Close() nor the destructor touches the library.
//
// Threads: all members may be called concurrently, none needs the GIL. Callers that hold the GIL must release it before
// Use() and Close(), because the one may wait for the other.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_SESSION_HANDLE_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_SESSION_HANDLE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <shared_mutex>

#include "abi/byteps.h"
#include "frameworks/common/library.h"
#include "frameworks/python/native/forks.h"

namespace byteps::python {

using binding::Library;

class SessionHandle {
 public:
  // Takes ownership of `session`.
  SessionHandle(std::shared_ptr<const Library> library, bps_session* session);
  ~SessionHandle();
  SessionHandle(const SessionHandle&) = delete;
  SessionHandle& operator=(const SessionHandle&) = delete;

  // Calls `call(bps_session*)` and returns its result. Throws StatusError (FAILED_PRECONDITION) if the session is
  // closed, or if this process was forked from the one that opened it.
  template <typename F>
  auto Use(F call) const {
    RefuseInForkedChild();
    std::shared_lock lock(closing_);
    RefuseIfClosed();
    return call(session_);
  }

  // As bps_shutdown; NULL if the session is closed already.
  bps_status* Shutdown(int64_t timeout_ms);

  // Closes the session, once. Calls of others that are still inside are ended first.
  void Close();

  // True in a child that was forked after the session was opened.
  bool IsForkedChild() const { return Forks() != forks_; }

  const Library& library() const { return *library_; }
  const std::shared_ptr<const Library>& shared_library() const { return library_; }

 private:
  void RefuseInForkedChild() const;
  void RefuseIfClosed() const;

  const std::shared_ptr<const Library> library_;
  const pid_t process_;
  const uint64_t forks_ = Forks();
  mutable std::shared_mutex closing_;  // shared: inside a call; exclusive: closing
  bps_session* session_;               // NULL once closed
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_SESSION_HANDLE_H_
