// result.h - what a collective has brought, as Python sees it: an object with the buffer protocol, over its bytes.
//
// Threads: any thread that holds the GIL.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_RESULT_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_RESULT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/python/native/request.h"

namespace byteps::python {

class Result {
 public:
  // The request owns the memory.
  Result(std::shared_ptr<Request> request, const bps_result& from)
      : request_(std::move(request)),
        data_(from.data),
        bytes_(from.bytes),
        shape_(from.shape, from.shape + from.ndim),
        splits_(from.splits, from.splits + from.num_splits) {}

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& splits() const { return splits_; }

 private:
  const std::shared_ptr<Request> request_;
  void* const data_;
  const uint64_t bytes_;
  const std::vector<int64_t> shape_, splits_;
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_RESULT_H_
