// Counts the allocations of the program that this is linked into: see allocation_counts.h.
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/e2e/allocation_counts.h"

// The functions of the C library that its own malloc and the like are names of.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace byteps {
namespace {

constexpr size_t kMostShown = 32;  // stacks, of each process
constexpr int kMostFrames = 24;

// Set before main, and never changed afterwards: allocations come from any thread.
std::atomic<SharedAllocationCounts*> shared{nullptr};
SharedAllocationCounts::Process* self = nullptr;
std::atomic<uint64_t> shown[kMostShown];  // of each stack, what tells it from others
thread_local bool counting = false;

const char* Or(const char* text, const char* otherwise) { return text == nullptr ? otherwise : text; }

// The first backtrace loads a library, so it must not be that of an allocation.
__attribute__((constructor)) void Begin() {
  const char* file = std::getenv(kAllocationsFile);
  if (file == nullptr) return;
  void* frames[1];
  ::backtrace(frames, 1);
  SharedAllocationCounts* counts = MapAllocationCounts(file);
  if (counts == nullptr) return;
  const uint32_t index = counts->processes.fetch_add(1);
  if (index >= SharedAllocationCounts::kProcesses) return;
  self = &counts->of[index];
  const char* role = Or(std::getenv("DMLC_ROLE"), "process");
  const char* rank = Or(std::getenv(std::strcmp(role, "worker") == 0 ? "BYTEPS_LOCAL_RANK" : "DMLC_RANK"), "0");
  std::snprintf(self->name, sizeof self->name, "%s %s", role, rank);
  self->pid.store(::getpid());
  shared.store(counts);
}

bool FromProvider(const void* caller) {
  Dl_info info;
  return ::dladdr(caller, &info) != 0 && info.dli_fname != nullptr &&
         std::strstr(info.dli_fname, "libfabric.so") != nullptr;
}

// Not shown before, and there is room to remember it?
bool IsNew(void* const* frames, int depth) {
  uint64_t hash = 1;
  for (int i = 0; i < depth; ++i) hash = hash * 1000003 + reinterpret_cast<uintptr_t>(frames[i]);
  for (std::atomic<uint64_t>& other : shown) {
    uint64_t nobody = 0;
    if (other.compare_exchange_strong(nobody, hash)) return true;
    if (nobody == hash) return false;
  }
  return false;
}

[[maybe_unused]] void Count(const void* caller, size_t size) {
  const SharedAllocationCounts* counts = shared.load(std::memory_order_acquire);
  if (counts == nullptr || counts->watching.load(std::memory_order_relaxed) == 0 || counting) return;
  counting = true;  // looking for the caller must not count itself
  const int error = errno;
  const bool provider = FromProvider(caller);
  (provider ? self->provider : self->own).fetch_add(1);
  void* frames[kMostFrames];
  const int depth = ::backtrace(frames, kMostFrames);
  if (IsNew(frames, depth)) {
    char head[96];
    const int length = std::snprintf(head, sizeof head, "%s allocates %zu bytes%s:\n", self->name, size,
                                     provider ? ", in libfabric" : "");
    if (::write(STDERR_FILENO, head, static_cast<size_t>(length)) > 0) {
      ::backtrace_symbols_fd(frames, depth, STDERR_FILENO);
    }
  }
  errno = error;
  counting = false;
}

}  // namespace

}  // namespace byteps

// Sanitizers have an allocator of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* malloc(size_t size) {
  byteps::Count(__builtin_return_address(0), size);
  return __libc_malloc(size);
}

EXPORT void* calloc(size_t count, size_t size) {
  byteps::Count(__builtin_return_address(0), count * size);
  return __libc_calloc(count, size);
}

EXPORT void* realloc(void* memory, size_t size) {
  byteps::Count(__builtin_return_address(0), size);
  return __libc_realloc(memory, size);
}

EXPORT void* memalign(size_t alignment, size_t size) {
  byteps::Count(__builtin_return_address(0), size);
  return __libc_memalign(alignment, size);
}

EXPORT void* aligned_alloc(size_t alignment, size_t size) {
  byteps::Count(__builtin_return_address(0), size);
  return __libc_memalign(alignment, size);
}

EXPORT int posix_memalign(void** memory, size_t alignment, size_t size) {
  byteps::Count(__builtin_return_address(0), size);
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

#endif
