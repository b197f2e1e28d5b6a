// pci_distance.h - how far the network cards of a host are from a GPU, as the PCI tree of /sys shows it.
//
//     text += NearestCards("", "0000:1b:00.0");
//     // ", NUMA node 1, mlx5_0 behind the same PCI bridge, eth0 on another NUMA node"
//
// What lies between two devices, the nearest first (the levels of `nvidia-smi topo`: PIX, PXB, PHB, NODE, SYS): one PCI
// bridge; several; the host bridge of both; host bridges of one NUMA node; two NUMA nodes.
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_INFO_PCI_DISTANCE_H_
#define BYTEPS_TOOLS_INFO_PCI_DISTANCE_H_

#include <string>

namespace byteps {

// Of the device with this PCI address; "" if /sys does not know it. Without cards, its NUMA node alone. `root`: where
// /sys is, "" for that of the host.
std::string NearestCards(const std::string& root, const std::string& pci);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_PCI_DISTANCE_H_
