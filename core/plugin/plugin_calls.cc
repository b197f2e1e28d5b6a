#include "core/plugin/plugin_calls.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace byteps {
namespace {

constexpr unsigned kStayNap = 10'000;  // microseconds

}  // namespace

bool PluginCalls::Hold(uint64_t number) {
  if (number % 2 == 0 || ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0) return false;
  held_.store(true, std::memory_order_seq_cst);
  const bool fenced = ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
  if (fenced && entered_.load(std::memory_order_acquire) == number) return true;
  held_.store(false, std::memory_order_seq_cst);
  return false;
}

void PluginCalls::Stay() const {
  while (held_.load(std::memory_order_acquire)) ::usleep(kStayNap);
}

}  // namespace byteps
