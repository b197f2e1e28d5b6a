#include "device_plugins/fake/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"

namespace byteps::fake {
namespace {

using devices::Error;

constexpr uint64_t kPage = 4096;

[[noreturn]] void Fail(const char* call) {
  throw Error(BPS_RESOURCE_EXHAUSTED, std::string(call) + " for the fake GPU: " + std::strerror(errno));
}

std::byte* Map(uint64_t size, int rights, int descriptor) {
  void* base = ::mmap(nullptr, size, rights, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) {
    ::close(descriptor);
    Fail("mmap");
  }
  return static_cast<std::byte*>(base);
}

int File(uint64_t size) {
  const int descriptor = ::memfd_create("fake GPU", MFD_CLOEXEC);
  if (descriptor < 0) Fail("memfd_create");
  if (::ftruncate(descriptor, static_cast<off_t>(size)) != 0) {
    ::close(descriptor);
    Fail("ftruncate");
  }
  return descriptor;
}

}  // namespace

Memory::~Memory() {
  while (!ranges_.empty()) Release(ranges_.begin()->second.base, ranges_.begin()->second.kind);
}

void* Memory::Allocate(int device, uint64_t size) {
  const uint64_t mapped = (size + kPage - 1) / kPage * kPage;
  const int descriptor = File(mapped);
  std::byte* inside = Map(mapped, PROT_READ | PROT_WRITE, descriptor);
  std::byte* base = Map(mapped, PROT_NONE, descriptor);
  ::close(descriptor);
  std::memset(inside, 0xFF, mapped);
  ranges_[reinterpret_cast<uintptr_t>(base)] = {Kind::kDevice, device, base, size, inside, mapped, ++identities_};
  return base;
}

void* Memory::AllocateHost(uint64_t size) {
  const uint64_t mapped = (size + kPage - 1) / kPage * kPage;
  const int descriptor = File(mapped);
  std::byte* base = Map(mapped, PROT_READ | PROT_WRITE, descriptor);
  ::close(descriptor);
  std::memset(base, 0xFF, mapped);
  ranges_[reinterpret_cast<uintptr_t>(base)] = {Kind::kPinned, 0, base, size, base, mapped};
  return base;
}

void Memory::Register(void* base, uint64_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(base);
  auto after = ranges_.lower_bound(begin);
  const bool next = after != ranges_.end() && after->first < begin + size;
  const bool before = after != ranges_.begin() && std::prev(after)->first + std::prev(after)->second.size > begin;
  if (next || before) throw Error(BPS_INVALID_ARGUMENT, "a part of this host memory is pinned already");
  auto* bytes = static_cast<std::byte*>(base);
  ranges_[begin] = {Kind::kRegistered, 0, bytes, size, bytes, 0};
}

void Memory::Release(void* base, Kind kind) {
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(base));
  if (found == ranges_.end() || found->second.kind != kind) {
    throw Error(BPS_INVALID_ARGUMENT, "no memory of this kind begins at this address");
  }
  const Range range = found->second;
  ranges_.erase(found);
  if (range.mapped == 0) return;
  if (range.file >= 0) ::close(range.file);
  ::munmap(range.base, range.mapped);
  if (range.inside != range.base) ::munmap(range.inside, range.mapped);
}

const Memory::Range* Memory::Find(const void* address, uint64_t size) const {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  auto after = ranges_.upper_bound(begin);
  if (after == ranges_.begin()) return nullptr;
  const Range& range = std::prev(after)->second;
  const uint64_t offset = begin - reinterpret_cast<uintptr_t>(range.base);
  return offset < range.size && size <= range.size - offset ? &range : nullptr;
}

std::byte* Memory::At(const void* address, uint64_t size) const {
  const Range* range = Find(address, size);
  return range == nullptr ? nullptr : range->inside + (static_cast<const std::byte*>(address) - range->base);
}

// Most allocations are never exported: no descriptor is kept for them. The pages of one that is are put into a new
// file, at the same addresses.
int Memory::Export(void* base) {
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(base));
  if (found == ranges_.end() || found->second.kind != Kind::kDevice) {
    throw Error(BPS_INVALID_ARGUMENT, "no device memory begins at this address");
  }
  Range& range = found->second;
  if (range.file < 0) {
    const int descriptor = File(range.mapped);
    const bool copied = ::pwrite(descriptor, range.inside, range.mapped, 0) == static_cast<ssize_t>(range.mapped);
    const auto exchange = [&](std::byte* at, int rights) {
      return ::mmap(at, range.mapped, rights, MAP_SHARED | MAP_FIXED, descriptor, 0) == at;
    };
    if (!copied || !exchange(range.inside, PROT_READ | PROT_WRITE) || !exchange(range.base, PROT_NONE)) {
      ::close(descriptor);
      Fail("a file of its own");
    }
    range.file = descriptor;
  }
  const int descriptor = ::fcntl(range.file, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) Fail("fcntl(F_DUPFD_CLOEXEC)");
  return descriptor;
}

uint64_t Memory::used(int device) const {
  uint64_t bytes = 0;
  for (const auto& [base, range] : ranges_) {
    if (range.kind == Kind::kDevice && range.device == device) bytes += range.size;
  }
  return bytes;
}

}  // namespace byteps::fake
