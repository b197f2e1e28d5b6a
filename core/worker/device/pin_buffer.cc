#include "core/worker/device/pin_buffer.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "core/base/numa.h"

namespace byteps {

absl::Status PinBuffer(Gpu* gpu, const Buffer& buffer) {
  // Where the kernel does not place memory, it is pinned where it is.
  (void)PreferNumaNode(buffer.data(), buffer.size(), NumaNodeOfPci(gpu->pci()));
  if (buffer.fd() < 0 && ::madvise(buffer.data(), buffer.size(), MADV_DONTFORK) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        gpu->name(), ": pinning host memory: it cannot be kept from forked ", "children: ", ::strerrordesc_np(errno)));
  }
  return gpu->RegisterHost(buffer.data(), buffer.size());
}

}  // namespace byteps
