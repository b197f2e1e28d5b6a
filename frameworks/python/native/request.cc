#include "frameworks/python/native/request.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "frameworks/python/native/interruptible.h"
#include "frameworks/python/native/status_error.h"

namespace byteps::python {

namespace py = pybind11;

Request::Request(std::shared_ptr<Session> session, bps_request* request, py::object buffers,
                 std::shared_ptr<Ending> ending)
    : session_(std::move(session)), request_(request), buffers_(std::move(buffers)), ending_(std::move(ending)) {}

Request::~Request() {
  // In a forked child the request belongs to the parent, and the child's copy of it is left alone.
  if (!session_->IsForkedChild()) session_->Adopt(request_, std::move(buffers_), ending_);
}

template <typename Call>
void Request::WaitFor(const std::optional<double>& timeout, Call wait) const {
  using Clock = std::chrono::steady_clock;
  const int64_t timeout_ms = TimeoutMs(timeout);
  const auto deadline =
      timeout_ms > 0 ? Clock::now() + std::chrono::milliseconds(timeout_ms) : Clock::time_point::max();

  for (;;) {
    bps_status* status = nullptr;
    int32_t ended = 0;
    bool expired = false;
    {
      py::gil_scoped_release released;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      status = wait(std::clamp<int64_t>(left.count(), 1, kSignalInterval.count()));
      if (status == nullptr) return;
      if (library().bps_status_code(status) == BPS_DEADLINE_EXCEEDED) {
        // Either this slice of the wait ended, or the operation did, with its own deadline.
        Check(library(), library().bps_test(request_, &ended));
        expired = Clock::now() >= deadline;
      } else {
        ended = 1;
      }
      if (ended != 0) {
        // The operation may have ended just after the wait: ask once more for its own outcome.
        library().bps_status_free(status);
        status = wait(/*timeout_ms=*/0);
      }
    }
    if (ended != 0) {
      Check(library(), status);
      return;
    }
    const std::string text = library().bps_status_message(status);
    library().bps_status_free(status);
    if (expired) {
      // The library knows the last slice alone, and has told its length instead of the caller's.
      const size_t colon = text.find(": ");
      throw StatusError(BPS_DEADLINE_EXCEEDED,
                        "the operation had not ended after " + std::to_string(timeout_ms) +
                            " ms: " + (colon == std::string::npos ? text : text.substr(colon + 2)),
                        /*retryable=*/true);
    }
    CheckSignals();
  }
}

void Request::Wait(const std::optional<double>& timeout) const {
  RefuseInForkedChild();
  if (HasEnded()) {  // many are waited for one by one, and most have ended by then
    (void)TimeoutMs(timeout);
    return Check(library(), library().bps_wait(request_, /*timeout_ms=*/0));
  }
  WaitFor(timeout, [&](int64_t timeout_ms) { return library().bps_wait(request_, timeout_ms); });
}

std::vector<size_t> Request::WaitAll(const std::vector<std::shared_ptr<Request>>& requests) {
  std::vector<size_t> failed;
  for (size_t place = 0; place < requests.size(); ++place) {
    try {
      requests[place]->Wait(std::nullopt);
    } catch (const StatusError&) {
      failed.push_back(place);
    }
  }
  return failed;
}

bool Request::HasEnded() const {
  int32_t ended = 0;
  if (library().bps_request_state(request_) >= BPS_REQUEST_DONE) Check(library(), library().bps_test(request_, &ended));
  return ended != 0;
}

void Request::WaitOnStream(uintptr_t stream, const std::optional<double>& timeout) const {
  RefuseInForkedChild();
  WaitFor(timeout, [&](int64_t timeout_ms) {
    return library().bps_wait_on_stream(request_, reinterpret_cast<void*>(stream), timeout_ms);
  });
}

bool Request::IsEnqueued() const {
  RefuseInForkedChild();
  return library().bps_request_state(request_) == BPS_REQUEST_ENQUEUED || Test();
}

bool Request::Test() const {
  RefuseInForkedChild();
  int32_t done = 0;
  Check(library(), library().bps_test(request_, &done));
  return done != 0;
}

bps_result Request::Result(int32_t index) const {
  RefuseInForkedChild();
  bps_result result = BPS_RESULT_INIT;
  Check(library(), library().bps_request_result(request_, index, &result));
  return result;
}

void Request::Cancel() const {
  RefuseInForkedChild();
  py::gil_scoped_release released;
  Check(library(), library().bps_cancel(request_));
}

std::string Request::State() const {
  RefuseInForkedChild();
  return library().bps_request_state_name(library().bps_request_state(request_));
}

void Request::RefuseInForkedChild() const {
  if (!session_->IsForkedChild()) return;
  throw StatusError(BPS_FAILED_PRECONDITION,
                    "this operation was started by the process that this one was forked from; only that process can "
                    "wait for it",
                    /*retryable=*/false);
}

}  // namespace byteps::python
