// numa.h - memory near a device: the NUMA node that a PCI device hangs on, and pages of that node.
//
//     const int node = NumaNodeOfPci("0000:1b:00.0");      // -1: not known, or there is but one
//     PreferNumaNode(data, size, node);                    // its pages come from there, as long as there are some
//
// Threads: free functions.
#ifndef BYTEPS_CORE_BASE_NUMA_H_
#define BYTEPS_CORE_BASE_NUMA_H_

#include <cstddef>
#include <string>

namespace byteps {

// `pci`: domain:bus:device.function, in capitals or not. `root`: where /sys is, "" for that of the host.
int NumaNodeOfPci(const std::string& pci, const std::string& root = "");

// Whole pages, touched or not: those that are there are moved. False: the kernel does not do it; nothing has changed.
// Nothing happens, and it is true, for a node below 0.
bool PreferNumaNode(void* base, size_t size, int node);

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_NUMA_H_
