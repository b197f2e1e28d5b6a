#include "transport_plugins/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "transport_plugins/common/background_unmap.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace byteps::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// Of no use to a file without a name, so that a mark can be made of them.
constexpr mode_t kPermissions = S_IRWXU | S_IRWXG | S_IRWXO;
// Transparent huge pages are worth their alignment from here on.
constexpr size_t kHugePage = size_t{2} << 20;

std::byte* Map(int fd, size_t size) {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  if (size >= kHugePage) ::madvise(base, size, MADV_HUGEPAGE);  // where shmem has them; else no harm
  return static_cast<std::byte*>(base);
}

// Memory files count as files: beyond this limit the kernel sends SIGXFSZ, which ends a process.
std::string WhyTooLarge(size_t size) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur) return "";
  return "no shared memory of " + std::to_string(size) + " bytes: files of this process may have " +
         std::to_string(limit.rlim_cur) + " bytes at most (ulimit -f)";
}

std::string Why(const std::string& what) {
  return what + ": " + std::strerror(errno) + (errno == EMFILE ? " (ulimit -n)" : "");
}

// Of at least `size` bytes, for ever?
bool IsSealed(int fd, size_t size) {
  struct stat status {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return ::fstat(fd, &status) == 0 && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
         status.st_size >= static_cast<off_t>(size);
}

}  // namespace

std::optional<SharedMemory> SharedMemory::Create(const char* name, size_t size, std::string* reason) {
  if (std::string why = WhyTooLarge(size); !why.empty()) {
    *reason = std::move(why);
    return std::nullopt;
  }
  // Kernels since 6.3 may insist on the first, older ones do not know it.
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd) fd = UniqueFd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    *reason = Why("no shared memory (memfd_create)");
    return std::nullopt;
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    *reason = Why("no shared memory of " + std::to_string(size) + " bytes");
    return std::nullopt;
  }
  std::byte* base = Map(fd.get(), size);
  if (base == nullptr) {
    *reason = Why("cannot map " + std::to_string(size) + " bytes of shared memory");
    return std::nullopt;
  }
  return SharedMemory(std::move(fd), base, size);
}

std::optional<SharedMemory> SharedMemory::Adopt(UniqueFd fd, size_t size, std::string* reason) {
  if (!IsSealed(fd.get(), size)) {
    *reason = "the descriptor of a peer is no sealed memory of " + std::to_string(size) + " bytes";
    return std::nullopt;
  }
  std::byte* base = Map(fd.get(), size);
  if (base == nullptr) {
    *reason = Why("cannot map " + std::to_string(size) + " bytes of a peer's memory");
    return std::nullopt;
  }
  return SharedMemory(UniqueFd(), base, size);
}

std::optional<SharedMemory> SharedMemory::Borrow(int fd, std::byte* base, size_t size, std::string* reason) {
  if (!IsSealed(fd, size)) {
    *reason = "the descriptor is no sealed memory of " + std::to_string(size) + " bytes";
    return std::nullopt;
  }
  SharedMemory memory(UniqueFd(), base, size);
  memory.lent_fd_ = fd;
  return memory;
}

bool SharedMemory::Detach() {
  // Of two that detach the same mapping at once, the second would throw away the private pages of the first.
  static std::mutex detaching;
  const std::lock_guard<std::mutex> lock(detaching);
  struct stat status {};
  if (!lent() || ::fstat(lent_fd_, &status) != 0) return false;
  if ((status.st_mode & kPermissions) == 0) return true;
  // The mark comes first: code that sees the pages exchanged must not lend them.
  if (::fchmod(lent_fd_, 0) != 0) return false;
  if (::mmap(base_, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, lent_fd_, 0) == MAP_FAILED) {
    ::fchmod(lent_fd_, status.st_mode & kPermissions);
    return false;
  }
  // A private page is a copy from the first write on. A byte that is exchanged for itself is one, and none is lost.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (size_t offset = 0; offset < size_; offset += page) {
    auto* byte = reinterpret_cast<unsigned char*>(base_ + offset);
    unsigned char value = __atomic_load_n(byte, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(byte, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
  return true;
}

bool SharedMemory::IsDetached(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && (status.st_mode & kPermissions) == 0;
}

SharedMemory::~SharedMemory() {
  if (base_ == nullptr || lent()) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  transports::UnmapInBackground(base_, (size_ + page - 1) / page * page, std::move(fd_));
}

}  // namespace byteps::shm
