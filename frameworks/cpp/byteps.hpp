// byteps.hpp - BytePS for C++: abi/byteps.h with owners and exceptions, in one header.
//
//     byteps::Session session;                                     // the environment says which job
//     byteps::Tensor tensor = session.Declare("layer1.weight", BPS_FLOAT32, {64, 32});
//     byteps::Request request = session.PushPull(tensor, gradient, gradient, BPS_AVERAGE);
//     request.Wait();
//     session.Shutdown();
//
// It adds nothing to the C interface, whose documentation holds: a Session owns everything, tensors are valid until it
// is destroyed, and input and output of an operation must stay valid until it has ended. A Request that is destroyed
// before that lets the operation go on.
//
// Errors: every failed call throws byteps::Error. Destructors do not throw.
//
// Threads: as the C interface; moving and destroying an object need a single owner, as everywhere.
#ifndef BYTEPS_FRAMEWORKS_CPP_BYTEPS_HPP_
#define BYTEPS_FRAMEWORKS_CPP_BYTEPS_HPP_

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/byteps.h"

namespace byteps {

// A failed call, in the library's own words.
class Error : public std::runtime_error {
 public:
  // Takes ownership of `status`, which is not NULL.
  explicit Error(bps_status* status)
      : std::runtime_error(bps_status_message(status)),
        code_(bps_status_code(status)),
        retryable_(bps_status_retryable(status) != 0) {
    bps_status_free(status);
  }

  // BPS_UNAVAILABLE and so on.
  int32_t code() const { return code_; }
  // Whether the same call may succeed when tried again.
  bool retryable() const { return retryable_; }

 private:
  int32_t code_;
  bool retryable_;
};

// Throws unless `status` is NULL.
inline void Check(bps_status* status) {
  if (status != nullptr) throw Error(status);
}

// Deadlines of the calls below; zero is the session's default.
using Timeout = std::chrono::milliseconds;

// A declared tensor; belongs to its session.
class Tensor {
 public:
  explicit Tensor(bps_tensor* tensor) : tensor_(tensor) {}
  bps_tensor* get() const { return tensor_; }

 private:
  bps_tensor* tensor_;
};

// One operation that was accepted.
class Request {
 public:
  explicit Request(bps_request* request) : request_(request) {}

  // Waits until the operation has ended; throws its error, or BPS_DEADLINE_EXCEEDED if the wait ended first.
  void Wait(Timeout timeout = Timeout(0)) { Check(bps_wait(request_.get(), timeout.count())); }

  // Whether the operation has ended. Never blocks, and does not throw the operation's error.
  bool Test() {
    int32_t done = 0;
    Check(bps_test(request_.get(), &done));
    return done != 0;
  }

  // Asks to give up.
  void Cancel() { Check(bps_cancel(request_.get())); }

  bps_request* get() const { return request_.get(); }

 private:
  struct Free {
    void operator()(bps_request* request) const { bps_request_free(request); }
  };
  std::unique_ptr<bps_request, Free> request_;
};

// A membership in a job.
class Session {
 public:
  // Joins the job that the environment names.
  Session() : Session(Defaults()) {}

  // Joins the job that `args` names; start from BPS_OPEN_ARGS_INIT.
  explicit Session(const bps_open_args& args) {
    bps_session* session = nullptr;
    Check(bps_open(&args, &session));
    session_.reset(session);
  }

  bps_info Info() const {
    bps_info info = BPS_INFO_INIT;
    Check(bps_session_info(session_.get(), &info));
    return info;
  }

  std::string transport() const { return bps_transport_name(session_.get()); }
  std::string scheduler() const { return bps_scheduler_name(session_.get()); }

  Tensor Declare(const std::string& name, uint32_t dtype, const std::vector<int64_t>& shape) {
    bps_declare_args args = BPS_DECLARE_ARGS_INIT;
    args.name = name.c_str();
    args.dtype = dtype;
    args.shape = shape.data();
    args.ndim = static_cast<int32_t>(shape.size());
    bps_tensor* tensor = nullptr;
    Check(bps_declare(session_.get(), &args, &tensor));
    return Tensor(tensor);
  }

  // Starts the reduction of `input` over all workers into `output`, which may be `input`. A larger priority is sooner.
  Request PushPull(Tensor tensor, const void* input, void* output, int32_t op, int64_t priority = 0) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor.get();
    args.input = input;
    args.output = output;
    args.op = op;
    args.priority = priority;
    bps_request* request = nullptr;
    Check(bps_push_pull(session_.get(), &args, &request));
    return Request(request);
  }

  // Starts the copy of the root's `input` into every rank's `output`.
  Request Broadcast(Tensor tensor, const void* input, void* output, int32_t root, int64_t priority = 0) {
    bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
    args.tensor = tensor.get();
    args.input = input;
    args.output = output;
    args.root = root;
    args.priority = priority;
    bps_request* request = nullptr;
    Check(bps_broadcast(session_.get(), &args, &request));
    return Request(request);
  }

  // Waits until every worker has called it as often.
  void Barrier(const std::string& name = "", Timeout timeout = Timeout(0)) {
    bps_barrier_args args = BPS_BARRIER_ARGS_INIT;
    args.name = name.c_str();
    args.timeout_ms = timeout.count();
    Check(bps_barrier(session_.get(), &args));
  }

  // Leaves the job in order. Without it the others see this worker fail when the session is destroyed.
  void Shutdown(Timeout timeout = Timeout(0)) { Check(bps_shutdown(session_.get(), timeout.count())); }

  // What the destructor does, but with a word: it cannot be done inside a callback. The session is empty afterwards.
  void Close() {
    Check(bps_close(session_.get()));
    session_.release();
  }

  bps_session* get() const { return session_.get(); }

 private:
  static bps_open_args Defaults() {
    bps_open_args args = BPS_OPEN_ARGS_INIT;
    return args;
  }

  struct Closer {
    // Refused inside a callback: the library has logged it.
    void operator()(bps_session* session) const { bps_status_free(bps_close(session)); }
  };
  std::unique_ptr<bps_session, Closer> session_;
};

}  // namespace byteps

#endif  // BYTEPS_FRAMEWORKS_CPP_BYTEPS_HPP_
