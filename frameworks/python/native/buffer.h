// buffer.h - a bps_buffer as Python sees it: an object with the buffer protocol, freed with the last who looks at it.
//
//     auto buffer = session.NewBuffer(bytes);
//     memoryview(buffer); numpy.frombuffer(buffer, ...); torch.frombuffer(buffer, ...)    # in Python
//
// It outlives its session as memory. A caller that starts an operation on it keeps it alive until the operation has
// ended (the `buffers` of Session::PushPull), so freeing it is never refused.
//
// Threads: as Python's own objects.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_BUFFER_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_BUFFER_H_

#include <cstddef>
#include <memory>

#include "abi/byteps.h"
#include "frameworks/python/native/session_handle.h"

namespace byteps::python {

class Buffer {
 public:
  // Takes ownership of `buffer`.
  Buffer(std::shared_ptr<SessionHandle> session, bps_buffer* buffer, size_t size);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return session_->library().bps_buffer_data(buffer_); }
  size_t size() const { return size_; }

 private:
  const std::shared_ptr<SessionHandle> session_;
  bps_buffer* const buffer_;
  const size_t size_;
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_BUFFER_H_
