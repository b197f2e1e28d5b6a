#include "transport_plugins/libfabric/buffer_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace byteps::fabric {

BufferPool::BufferPool(size_t count, size_t size) : stride_((size + 63) / 64 * 64) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes_ = (count * stride_ + page - 1) / page * page;
  void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(base);
}

BufferPool::~BufferPool() {
  registration_.reset();
  munmap(base_, bytes_);
}

int BufferPool::Register(fid_domain* domain, uint64_t access, uint64_t key) {
  return fi_mr_reg(domain, base_, bytes_, access, 0, key, 0, Out(registration_), nullptr);
}

}  // namespace byteps::fabric
