// prepared_push_pull.h - push_pulls of one tensor after another with the same name, dtype, shape and op.
//
//     auto prepared = session->Prepare({"layer1.weight", BPS_FLOAT32, {64, 32}}, BPS_AVERAGE);
//     std::shared_ptr<Request> request = prepared->Start(address, address, buffers, priority);
//
// It is Session::PushPull, which declares the tensor each time, for callers with many small tensors: what does not
// change is taken from Python, and declared, once. It is of use until its session is closed; Start() throws then.
//
// Threads: as Python's own objects: any thread that holds the GIL.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_PREPARED_PUSH_PULL_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_PREPARED_PUSH_PULL_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "abi/byteps.h"
#include "frameworks/python/native/session.h"

namespace byteps::python {

class PreparedPushPull {
 public:
  // `tensor`: declared in `session`.
  PreparedPushPull(std::shared_ptr<Session> session, bps_tensor* tensor, int32_t op)
      : session_(std::move(session)), tensor_(tensor), op_(op) {}

  // Arguments as of Session::PushPull.
  std::shared_ptr<Request> Start(uintptr_t input, uintptr_t output, pybind11::object buffers, int64_t priority) const {
    return session_->PushPull(tensor_, op_, input, output, priority, std::move(buffers));
  }

 private:
  const std::shared_ptr<Session> session_;
  bps_tensor* const tensor_;
  const int32_t op_;
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_PREPARED_PUSH_PULL_H_
