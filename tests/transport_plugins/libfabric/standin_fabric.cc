// standin_fabric.cc - a libfabric.so.1 whose tcp provider reads and writes the memory of GPUs (FI_HMEM): the real one,
// with the memory of the fake GPUs where it asks for that of CUDA's.
//
// What it promises is what a device does that has peer access: memory that fi_mr_regattr was given as CUDA's is read
// and written where it is, by address or by the dma-buf of its allocation, and everything local is registered
// (FI_MR_LOCAL). Stricter: a write from memory of a GPU without a registration ends with an error, and each read of the
// network card is told to the fake GPUs, which report it if the program has not waited for what was written there.
//
// STANDIN_FABRIC_REAL: the path of the real library. STANDIN_FABRIC_DMABUF=1: it knows dma-bufs, and finds GPU memory
// by these alone. STANDIN_FABRIC_REFUSES=1: it offers FI_HMEM, and then registers no memory of a GPU.
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "device_plugins/fake/control.h"

namespace byteps {
namespace {

constexpr uint64_t kDmaBufFlag = 1ULL << 40;  // FI_MR_DMABUF
struct DmaBuf {                               // fi_mr_dmabuf
  int fd;
  uint64_t offset;
  size_t len;
  void* base_addr;
};

bool Is(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string(value) == "1";
}

void* Real() {
  static void* const library = [] {
    const char* path = std::getenv("STANDIN_FABRIC_REAL");
    return path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }();
  if (library == nullptr) std::abort();
  return library;
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(Real(), name));
}

#define REAL(function) Real<decltype(function)>(#function)

// Those of this process; nullptr: it has none.
const fake_gpu_control* Gpus() {
  const char* driver = std::getenv("E2E_GPUS");
  const char* path = driver != nullptr ? driver : std::getenv("BYTEPS_DEVICE");
  void* plugin = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (plugin == nullptr) return nullptr;
  auto* find = reinterpret_cast<const fake_gpu_control* (*)()>(dlsym(plugin, "bps_fake_gpu"));
  dlclose(plugin);  // those who use it hold it
  return find == nullptr ? nullptr : find();
}

// The operations of the real provider's objects, by the address of ours.
std::mutex mutex;
fi_ops_fabric real_fabric, our_fabric;
fi_ops_domain real_domain, our_domain;
fi_ops_mr real_memory, our_memory;
fi_ops_rma real_writes, our_writes;
fi_ops real_registration, our_registration;
std::map<const fid*, iovec> mapped;  // dma-bufs, by their registration

// What the real provider knows of.
struct Stripped {
  explicit Stripped(const fi_info* from) : info(REAL(fi_dupinfo)(from)) {
    this->info->caps &= ~FI_HMEM;
    this->info->domain_attr->mr_mode &= ~(FI_MR_HMEM | FI_MR_LOCAL);
    if (this->info->tx_attr != nullptr) this->info->tx_attr->caps &= ~FI_HMEM;
    if (this->info->rx_attr != nullptr) this->info->rx_attr->caps &= ~FI_HMEM;
  }
  ~Stripped() { REAL(fi_freeinfo)(info); }
  Stripped(const Stripped&) = delete;
  Stripped& operator=(const Stripped&) = delete;

  fi_info* const info;
};

int CloseRegistration(fid* registration) {
  iovec memory = {};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = mapped.find(registration); found != mapped.end()) {
      memory = found->second;
      mapped.erase(found);
    }
  }
  const int code = real_registration.close(registration);
  if (memory.iov_base != nullptr) munmap(memory.iov_base, memory.iov_len);
  return code;
}

int RegisterDmaBuf(fid* domain, const fi_mr_attr* attributes, fid_mr** registration) {
  const auto& buffer = *reinterpret_cast<const DmaBuf*>(attributes->mr_iov);
  void* inside =
      mmap(nullptr, buffer.len, PROT_READ | PROT_WRITE, MAP_SHARED, buffer.fd, static_cast<off_t>(buffer.offset));
  if (inside == MAP_FAILED) return -FI_EBADF;
  const int code = real_memory.reg(domain, inside, buffer.len, attributes->access, 0, attributes->requested_key, 0,
                                   registration, attributes->context);
  if (code != 0) {
    munmap(inside, buffer.len);
    return code;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  real_registration = *(*registration)->fid.ops;
  our_registration = real_registration;
  our_registration.close = CloseRegistration;
  (*registration)->fid.ops = &our_registration;
  mapped[&(*registration)->fid] = {inside, buffer.len};
  return 0;
}

int RegisterAttributes(fid* domain, const fi_mr_attr* attributes, uint64_t flags, fid_mr** registration) {
  if (attributes->iface != FI_HMEM_CUDA || attributes->iov_count != 1) return -FI_EINVAL;
  const fake_gpu_control* gpus = Gpus();
  if (gpus == nullptr || Is("STANDIN_FABRIC_REFUSES")) return -FI_ENOSYS;
  if ((flags & kDmaBufFlag) != 0) return RegisterDmaBuf(domain, attributes, registration);
  if (flags != 0 || Is("STANDIN_FABRIC_DMABUF")) return -FI_EINVAL;
  const iovec& memory = *attributes->mr_iov;
  void* inside = gpus->remote_access(memory.iov_base, memory.iov_len, 0);
  if (inside == nullptr) return -FI_EFAULT;
  return real_memory.reg(domain, inside, memory.iov_len, attributes->access, 0, attributes->requested_key, 0,
                         registration, attributes->context);
}

ssize_t WriteData(fid_ep* endpoint, const void* from, size_t size, void* descriptor, uint64_t data, fi_addr_t to,
                  uint64_t address, uint64_t key, void* context) {
  const fake_gpu_control* gpus = Gpus();
  const void* inside = gpus == nullptr || size == 0 ? nullptr : gpus->remote_access(from, size, 1);
  return real_writes.writedata(endpoint, inside == nullptr ? from : inside, size, descriptor, data, to, address, key,
                               context);
}

int OpenEndpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  const Stripped stripped(info);
  const int code = real_domain.endpoint(domain, stripped.info, endpoint, context);
  if (code != 0) return code;
  const std::lock_guard<std::mutex> lock(mutex);
  real_writes = *(*endpoint)->rma;
  our_writes = real_writes;
  our_writes.writedata = WriteData;
  (*endpoint)->rma = &our_writes;
  return 0;
}

int OpenDomain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  const Stripped stripped(info);
  const int code = real_fabric.domain(fabric, stripped.info, domain, context);
  if (code != 0) return code;
  const std::lock_guard<std::mutex> lock(mutex);
  real_domain = *(*domain)->ops;
  our_domain = real_domain;
  our_domain.endpoint = OpenEndpoint;
  (*domain)->ops = &our_domain;
  real_memory = *(*domain)->mr;
  our_memory = real_memory;
  our_memory.regattr = RegisterAttributes;
  (*domain)->mr = &our_memory;
  return 0;
}

int OpenListener(fid_fabric* fabric, fi_info* info, fid_pep** listener, void* context) {
  const Stripped stripped(info);
  return real_fabric.passive_ep(fabric, stripped.info, listener, context);
}

}  // namespace
}  // namespace byteps

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT uint32_t fi_version() { return byteps::Is("STANDIN_FABRIC_DMABUF") ? FI_VERSION(1, 20) : FI_VERSION(1, 17); }

EXPORT int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
                      fi_info** info) {
  using namespace byteps;
  const bool wanted = hints != nullptr && (hints->caps & FI_HMEM) != 0;
  if (!wanted) return REAL(fi_getinfo)(version, node, service, flags, hints, info);
  if ((hints->domain_attr->mr_mode & (FI_MR_HMEM | FI_MR_LOCAL)) != (FI_MR_HMEM | FI_MR_LOCAL)) return -FI_ENODATA;
  const Stripped stripped(hints);
  const int code = REAL(fi_getinfo)(version, node, service, flags, stripped.info, info);
  for (fi_info* each = code == 0 ? *info : nullptr; each != nullptr; each = each->next) {
    each->caps |= FI_HMEM;
    each->domain_attr->mr_mode |= FI_MR_HMEM | FI_MR_LOCAL;
  }
  return code;
}

EXPORT void fi_freeinfo(fi_info* info) { byteps::REAL(fi_freeinfo)(info); }
EXPORT fi_info* fi_dupinfo(const fi_info* info) { return byteps::REAL(fi_dupinfo)(info); }
EXPORT char* fi_tostr_r(char* buffer, size_t size, const void* data, fi_type type) {
  return byteps::REAL(fi_tostr_r)(buffer, size, data, type);
}
EXPORT const char* fi_strerror(int code) { return byteps::REAL(fi_strerror)(code); }

EXPORT int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  using namespace byteps;
  const int code = REAL(fi_fabric)(attributes, fabric, context);
  if (code != 0) return code;
  const std::lock_guard<std::mutex> lock(mutex);
  real_fabric = *(*fabric)->ops;
  our_fabric = real_fabric;
  our_fabric.domain = OpenDomain;
  our_fabric.passive_ep = OpenListener;
  (*fabric)->ops = &our_fabric;
  return 0;
}
