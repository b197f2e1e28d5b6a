// request.h - one operation in flight, as Python sees it.
//
//     request = session.push_pull(...)
//     if not request.test(): request.wait()
//
// Holds the operation's buffers. Dropping a request before it has ended is allowed: the session then keeps the buffers
// until the library has let go of them.
//
// Threads: any thread that holds the GIL; several may wait for one request.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_REQUEST_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_REQUEST_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/python/native/session.h"

namespace byteps::python {

class Request {
 public:
  // Takes ownership of `request`. `ending`: what its callback tells; nullptr: it has none.
  Request(std::shared_ptr<Session> session, bps_request* request, pybind11::object buffers,
          std::shared_ptr<Ending> ending);
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Waits until the operation has ended, at most `timeout` seconds (absent: the operation's own deadline). Throws its
  // error. Python's signal handlers run meanwhile.
  void Wait(const std::optional<double>& timeout) const;

  // As Wait, of all of them, whatever becomes of one. Returns the places of those whose operation has failed: their
  // Wait throws the error.
  static std::vector<size_t> WaitAll(const std::vector<std::shared_ptr<Request>>& requests);

  // Waits on the host until the result is in a stream of the output's GPU, and makes `stream`, of the same GPU, wait
  // for it. Of an output on the host it is Wait.
  void WaitOnStream(uintptr_t stream, const std::optional<double>& timeout) const;

  // Whether the result is in a stream, or the operation has ended: WaitOnStream will not wait on the host. Never
  // blocks.
  bool IsEnqueued() const;

  // Whether the operation has ended. Never blocks, never throws the operation's error.
  bool Test() const;

  // What its operation `index` has brought. Throws FAILED_PRECONDITION unless it has ended well.
  bps_result Result(int32_t index) const;

  // Asks to give up, as bps_cancel.
  void Cancel() const;

  // The name of the request's state now, such as "queued".
  std::string State() const;

 private:
  const Library& library() const { return session_->library(); }
  void RefuseInForkedChild() const;
  bool HasEnded() const;
  // `wait`: waits so many milliseconds, 0: as long as the operation may take.
  template <typename Call>
  void WaitFor(const std::optional<double>& timeout, Call wait) const;

  const std::shared_ptr<Session> session_;
  bps_request* const request_;
  pybind11::object buffers_;
  const std::shared_ptr<Ending> ending_;
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_REQUEST_H_
