#include "transport_plugins/libfabric/region.h"

#include <fcntl.h>
#include <rdma/fi_errno.h>
#include <sys/uio.h>

#include <utility>

#include "transport_plugins/libfabric/fabric_library.h"

namespace byteps::fabric {

namespace {

// Of libfabric 1.20 and later; the header that this is compiled with may be older.
constexpr uint64_t kDmaBufFlag = 1ULL << 40;  // FI_MR_DMABUF
constexpr uint32_t kDmaBufApi = FI_VERSION(1, 20);
struct DmaBuf {  // fi_mr_dmabuf, in the place of fi_mr_attr's mr_iov
  int fd;
  uint64_t offset;
  size_t len;
  void* base_addr;
};
#ifdef FI_MR_DMABUF
static_assert(kDmaBufFlag == FI_MR_DMABUF && sizeof(DmaBuf) == sizeof(fi_mr_dmabuf));
#endif

}  // namespace

DeviceMemory DeviceMemory::Of(const bps_device_memory& memory) {
  DeviceMemory made;
  made.id = memory.id;
  if (memory.dmabuf >= 0) made.dmabuf = transports::UniqueFd(::fcntl(memory.dmabuf, F_DUPFD_CLOEXEC, 0));
  return made;
}

int Region::Register(uint64_t access, uint64_t number, FidPtr<fid_mr>* registration) {
  if (device_.id < 0) {
    return fi_mr_reg(memory_.get(), base_, size_, access, 0, number, 0, Out(*registration), nullptr);
  }
  const iovec whole = {base_, size_};
  fi_mr_attr attributes{};
  attributes.iov_count = 1;
  attributes.access = access;
  attributes.requested_key = number;
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = device_.id;
  if (device_.dmabuf.get() >= 0 && FI_VERSION_GE(fi_version(), kDmaBufApi)) {
    const DmaBuf buffer = {device_.dmabuf.get(), 0, size_, base_};
    attributes.mr_iov = reinterpret_cast<const iovec*>(&buffer);
    const int code = fi_mr_regattr(memory_.get(), &attributes, kDmaBufFlag, Out(*registration));
    if (code == 0) return 0;
  }
  // Providers that know no dma-buf may know the address (nvidia-peermem).
  attributes.mr_iov = &whole;
  return fi_mr_regattr(memory_.get(), &attributes, 0, Out(*registration));
}

int Region::RegisterLocal() { return Register(FI_WRITE, memory_.RandomKey(), &local_); }

bool Region::Contains(const void* at, size_t size) const {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base_), where = reinterpret_cast<uintptr_t>(at);
  return where >= begin && size <= size_ && where - begin <= size_ - size;
}

int Region::GrantTo(bps_peer peer, Key* key, const uint64_t* wanted) {
  auto grant = grants_.find(peer);
  if (grant == grants_.end()) {
    FidPtr<fid_mr> registration;
    const uint64_t number = wanted != nullptr ? *wanted : memory_.RandomKey();
    const int code = Register(FI_REMOTE_WRITE, number, &registration);
    if (code != 0) return code;
    grant = grants_.emplace(peer, std::move(registration)).first;
  }
  key->key = fi_mr_key(grant->second.get());
  key->base = memory_.RemoteAddressIsVirtual() ? reinterpret_cast<uintptr_t>(base_) : 0;
  key->size = size_;
  return 0;
}

bool Region::GrantedTo(bps_peer peer, uint64_t* key) const {
  auto grant = grants_.find(peer);
  if (grant == grants_.end()) return false;
  *key = fi_mr_key(grant->second.get());
  return true;
}

}  // namespace byteps::fabric
