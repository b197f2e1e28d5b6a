#include "core/base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>

namespace byteps {

int NumaNodeOfPci(const std::string& pci, const std::string& root) {
  std::string name = pci;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(root + "/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

bool PreferNumaNode(void* base, size_t size, int node) {
  if (node < 0 || size == 0) return true;
  constexpr int kMostNodes = 1024;
  constexpr int kBits = 8 * sizeof(unsigned long);  // NOLINT(google-runtime-int): the kernel's
  if (node >= kMostNodes) return false;
  unsigned long nodes[kMostNodes / kBits] = {};  // NOLINT(google-runtime-int)
  nodes[node / kBits] = 1UL << (node % kBits);
  // The C library has no wrapper, and libnuma would be one more thing to install. One more bit than there are: the
  // kernel takes one away.
  return ::syscall(SYS_mbind, base, size, MPOL_PREFERRED, nodes, kMostNodes + 1, MPOL_MF_MOVE) == 0;
}

}  // namespace byteps
