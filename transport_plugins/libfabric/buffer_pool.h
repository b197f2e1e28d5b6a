// buffer_pool.h - equal buffers in one mapping, registered with the provider where it wants that.
//
//     BufferPool pool(64, 16392);
//     std::byte* buffer = pool.at(3);
//
// Pages are touched when they are first used: an idle pool costs address space only.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_BUFFER_POOL_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_BUFFER_POOL_H_

#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>

#include "transport_plugins/libfabric/fid.h"

namespace byteps::fabric {

class BufferPool {
 public:
  // Throws std::bad_alloc.
  BufferPool(size_t count, size_t size);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // For providers with FI_MR_LOCAL. 0 or a negative libfabric code. `key`: unique in the domain.
  int Register(fid_domain* domain, uint64_t access, uint64_t key);

  std::byte* at(size_t index) const { return base_ + index * stride_; }
  // What to pass along with a buffer; NULL if it is not registered.
  void* descriptor() const { return registration_ == nullptr ? nullptr : fi_mr_desc(registration_.get()); }

 private:
  size_t stride_, bytes_;
  std::byte* base_;
  FidPtr<fid_mr> registration_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_BUFFER_POOL_H_
