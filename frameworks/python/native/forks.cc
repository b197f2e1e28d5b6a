#include "frameworks/python/native/forks.h"

#include <pthread.h>

#include <atomic>
#include <new>

namespace byteps::python {
namespace {

std::atomic<uint64_t>& Count() {
  static std::atomic<uint64_t> count{0};
  return count;
}

void CountOne() { Count().fetch_add(1, std::memory_order_relaxed); }

}  // namespace

uint64_t Forks() {
  [[maybe_unused]] static const bool kCounted = [] {
    if (pthread_atfork(nullptr, nullptr, CountOne) != 0) throw std::bad_alloc();
    return true;
  }();
  return Count().load(std::memory_order_relaxed);
}

}  // namespace byteps::python
