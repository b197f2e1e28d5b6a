#include "frameworks/python/native/buffer.h"

#include <utility>

namespace byteps::python {

Buffer::Buffer(std::shared_ptr<SessionHandle> session, bps_buffer* buffer, size_t size)
    : session_(std::move(session)), buffer_(buffer), size_(size) {}

Buffer::~Buffer() {
  // In a forked child it belongs to the parent. Where the library refuses (the program has used the memory behind
  // Python's back), it stays: nothing else would be safe.
  if (session_->IsForkedChild()) return;
  session_->library().bps_status_free(session_->library().bps_buffer_free(buffer_));
}

}  // namespace byteps::python
