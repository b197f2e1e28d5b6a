// memory_domain.h - where memory is registered, and by which of the provider's rules.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_MEMORY_DOMAIN_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_MEMORY_DOMAIN_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <sys/random.h>

#include <cstdint>
#include <stdexcept>

namespace byteps::fabric {

// A random number that cannot be guessed.
inline uint64_t RandomNumber() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    throw std::runtime_error("the kernel gives no random numbers");
  }
  return number;
}

class MemoryDomain {
 public:
  MemoryDomain(fid_domain* domain, const fi_info* info) : domain_(domain), info_(info) {}

  fid_domain* get() const { return domain_; }
  // Memory of GPUs, too.
  bool RegistersDeviceMemory() const { return (info_->caps & FI_HMEM) != 0; }
  bool RegistersLocalMemory() const { return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0; }
  bool RemoteAddressIsVirtual() const { return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0; }

  // Random, so that a key is a capability: only who was given it can write.
  uint64_t RandomKey() const {
    // Providers with small keys say so; all others take any number.
    const size_t size = info_->domain_attr->mr_key_size;
    const uint64_t key = RandomNumber();
    return size >= sizeof key || size == 0 ? key : key & ((uint64_t{1} << (8 * size)) - 1);
  }

 private:
  fid_domain* domain_;
  const fi_info* info_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_MEMORY_DOMAIN_H_
