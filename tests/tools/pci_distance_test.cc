#include "tools/info/pci_distance.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/tools/host_tree.h"

namespace byteps {
namespace {

void Device(const HostTree& host, const std::string& path, int node) {
  host.File("/sys/devices/" + path + "/numa_node", std::to_string(node) + "\n");
}

// Two sockets, a switch below the first.
TEST(PciDistanceTest, TheNearestCardFirst) {
  const HostTree host;
  const std::string below = "pci0000:17/0000:17:01.0/0000:18:00.0/";
  Device(host, below + "0000:19:00.0/0000:1b:00.0", 0);
  Device(host, below + "0000:19:00.0/0000:1b:00.1", 0);
  Device(host, below + "0000:19:01.0/0000:1c:00.0", 0);
  Device(host, "pci0000:17/0000:17:05.0", 0);
  Device(host, "pci0000:00/0000:00:03.0", 0);
  Device(host, "pci0000:80/0000:80:01.0", 1);
  host.Link("/sys/bus/pci/devices/0000:1b:00.0", "../../../devices/" + below + "0000:19:00.0/0000:1b:00.0");
  const std::string up = "../../../devices/";
  host.Link("/sys/class/net/far0/device", up + "pci0000:80/0000:80:01.0");
  host.Link("/sys/class/net/node0/device", up + "pci0000:00/0000:00:03.0");
  host.File("/sys/devices/pci0000:17/0000:17:05.0/virtio2/vendor", "0x1af4\n");
  host.Link("/sys/class/net/bridge0/device", up + "pci0000:17/0000:17:05.0");
  host.Link("/sys/class/infiniband/mlx5_1/device", up + below + "0000:19:01.0/0000:1c:00.0");
  host.Link("/sys/class/infiniband/mlx5_0/device", up + below + "0000:19:00.0/0000:1b:00.1");
  host.File("/sys/class/net/lo/mtu", "65536\n");
  EXPECT_EQ(
      NearestCards(host.root(), "0000:1B:00.0"),
      ", NUMA node 0, mlx5_0 behind the same PCI bridge, mlx5_1 some PCI bridges away, bridge0 behind the same PCI "
      "host bridge, node0 behind another host bridge of the same NUMA node, far0 on another NUMA node");
}

TEST(PciDistanceTest, WhatIsNotThere) {
  const HostTree host;
  EXPECT_EQ(NearestCards(host.root(), "0000:1b:00.0"), "");
  EXPECT_EQ(NearestCards(host.root(), ""), "");
  Device(host, "pci0000:00/0000:00:03.0", -1);
  host.Link("/sys/bus/pci/devices/0000:00:03.0", "../../../devices/pci0000:00/0000:00:03.0");
  EXPECT_EQ(NearestCards(host.root(), "0000:00:03.0"), "");
}

}  // namespace
}  // namespace byteps
