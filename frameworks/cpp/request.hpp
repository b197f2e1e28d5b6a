// Operations in flight; part of byteps.hpp.
#ifndef BYTEPS_FRAMEWORKS_CPP_REQUEST_HPP_
#define BYTEPS_FRAMEWORKS_CPP_REQUEST_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/cpp/status.hpp"

namespace byteps {

// How an operation is done.
struct Options {
  int64_t priority = 0;  // larger is sooner
  Timeout timeout{0};    // of the whole operation
  uint64_t match = 0;    // a number that the ranks compare, such as a step's; 0: none
  // Runs once if the operation was accepted, on a thread of the library. It must not block, nor throw (std::terminate).
  std::function<void(Status)> done = nullptr;
};

// One operation that was accepted.
class Request {
 public:
  explicit Request(bps_request* request) : request_(request) {}

  // Waits until the operation has ended; throws its error, or BPS_DEADLINE_EXCEEDED if the wait ended first.
  void Wait(Timeout timeout = Timeout(0)) { Check(bps_wait(request_.get(), timeout.count())); }
  Status TryWait(Timeout timeout = Timeout(0)) { return Status(bps_wait(request_.get(), timeout.count())); }

  // Whether the operation has ended. Never blocks, and does not throw the operation's error.
  bool Test() const {
    int32_t done = 0;
    Check(bps_test(request_.get(), &done));
    return done != 0;
  }

  // Asks to give up.
  void Cancel() { Check(bps_cancel(request_.get())); }
  Status TryCancel() { return Status(bps_cancel(request_.get())); }

  bps_request* get() const { return request_.get(); }

 private:
  struct Free {
    void operator()(bps_request* request) const { bps_request_free(request); }
  };
  std::unique_ptr<bps_request, Free> request_;
};

// Requests that end in this block:
//     byteps::Group group;
//     for (...) group.Add(session.PushPull(...));
//     group.Wait();
// What has not ended when the group is destroyed (an exception is on its way) is cancelled and waited for, so that the
// memory of this block outlives its operations. Not inside a callback of the library, where nothing can be waited for.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    for (Request& request : requests_) bps_status_free(bps_cancel(request.get()));
    for (Request& request : requests_) {
      // The wait may end before the operation; it always ends.
      while (request.TryWait().code() == BPS_DEADLINE_EXCEEDED && !request.Test()) {
      }
    }
  }

  void Add(Request request) { requests_.push_back(std::move(request)); }

  // Waits for all; throws the first error when all have ended.
  void Wait() { Check(TryWait()); }
  Status TryWait() {
    Status first;
    for (Request& request : requests_) {
      Status status = request.TryWait();
      if (first.ok()) first = std::move(status);
    }
    std::erase_if(requests_, [](const Request& request) { return request.Test(); });
    return first;
  }

 private:
  std::vector<Request> requests_;
};

// An operation that owns its memory, a container of elements such as std::vector. Destroyed early it lets the operation
// go on, and the memory lives until that has ended.
template <typename Container>
class OwningRequest {
 public:
  OwningRequest(Request request, std::shared_ptr<Container> memory)
      : request_(std::move(request)), memory_(std::move(memory)) {}

  // Waits as Request does; gives the memory back, once.
  Container Wait() {
    request_.Wait();
    return std::move(*memory_);
  }
  // The same; the memory comes back whatever the outcome was. Without timeout: the operation has ended then.
  std::pair<Container, Status> TryWait() {
    Status status = request_.TryWait();
    while (!request_.Test()) status = request_.TryWait();
    return {std::move(*memory_), std::move(status)};
  }
  Request& request() { return request_; }

 private:
  Request request_;
  std::shared_ptr<Container> memory_;
};

namespace internal {

// What goes with the arguments of an operation, which point into it: it must not move until they have been submitted.
struct Extensions {
  // `match`: as of Options. `reason`: of a round that is given up; nullptr: it is not.
  const bps_ext* Chain(uint64_t match, const char* reason) {
    const bps_ext* first = nullptr;
    if (match != 0) {
      number.number = match;
      first = &number.ext;
    }
    if (reason != nullptr) {
      given_up.reason = reason;
      given_up.ext.next = first;
      first = &given_up.ext;
    }
    return first;
  }

  bps_match number = BPS_MATCH_INIT;
  bps_give_up given_up = BPS_GIVE_UP_INIT;
};

// The bps_done_fn of a callable.
inline void Done(void* user, bps_status* error) noexcept {
  const std::unique_ptr<std::function<void(Status)>> done(static_cast<std::function<void(Status)>*>(user));
  (*done)(Status(error));
}

// Submits `args` by `submit(args, &request)`, with `callback` (may be empty) as their `done`.
template <typename Args, typename SubmitFn>
Result<Request> Submit(Args args, std::function<void(Status)> callback, SubmitFn submit) {
  std::unique_ptr<std::function<void(Status)>> done;
  if (callback) {
    done = std::make_unique<std::function<void(Status)>>(std::move(callback));
    args.done = &Done;
    args.user = done.get();
  }
  bps_request* request = nullptr;
  if (bps_status* status = submit(args, &request)) return Status(status);
  (void)done.release();  // It runs once, and frees itself.
  return Request(request);
}

// A callback that keeps `memory` until the operation has ended, and then calls `then`, if there is one.
template <typename Memory>
std::function<void(Status)> Keeping(std::shared_ptr<Memory> memory, std::function<void(Status)> then) {
  return [memory = std::move(memory), then = std::move(then)](const Status& status) {
    if (then) then(status);
  };
}

}  // namespace internal

}  // namespace byteps

#endif  // BYTEPS_FRAMEWORKS_CPP_REQUEST_HPP_
