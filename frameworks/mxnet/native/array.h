// array.h - an NDArray of MXNet's that is kept until an operation on it has ended, whatever Python does to its own.
//
// Threads: any; one at a time.
#ifndef BYTEPS_FRAMEWORKS_MXNET_NATIVE_ARRAY_H_
#define BYTEPS_FRAMEWORKS_MXNET_NATIVE_ARRAY_H_

#include <cstdint>
#include <vector>

#include "frameworks/mxnet/native/c_api.h"

namespace byteps::mxnet {

class Array {
 public:
  // Another reference to the array behind `handle`. Throws std::runtime_error.
  explicit Array(NDArrayHandle handle);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  NDArrayHandle handle() const { return handle_; }
  uint32_t dtype() const { return dtype_; }  // BPS_FLOAT32, ...
  const std::vector<int64_t>& shape() const { return shape_; }

  // Where the elements are. Only inside an operation that depends on the array: what computes it may allocate it.
  // Throws std::runtime_error.
  void* Data() const;

 private:
  NDArrayHandle handle_ = nullptr;
  uint32_t dtype_;
  std::vector<int64_t> shape_;
};

}  // namespace byteps::mxnet

#endif  // BYTEPS_FRAMEWORKS_MXNET_NATIVE_ARRAY_H_
