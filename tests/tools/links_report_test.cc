#include "tools/info/links_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/host_tree.h"

namespace byteps {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

TEST(LinksReportTest, InterfacesWithTheirLinks) {
  const HostTree host;
  const std::string net = "/sys/class/net/";
  host.File(net + "eth0/flags", "0x1003\n");
  host.File(net + "eth0/operstate", "up\n");
  host.File(net + "eth0/speed", "25000\n");
  host.File(net + "eth0/mtu", "9000\n");
  host.File(net + "eth0/device/numa_node", "1\n");
  host.Link(net + "eth0/device/driver", "../../bus/pci/drivers/mlx5_core");
  host.File(net + "eth1/flags", "0x1003\n");
  host.File(net + "eth1/operstate", "down\n");
  host.File(net + "eth1/speed", "-1\n");
  host.File(net + "eth1/mtu", "1500\n");
  host.File(net + "eth2/flags", "0x1002\n");
  host.File(net + "eth2/mtu", "1500\n");
  host.File(net + "bonding_masters", "\n");
  const std::string report = LinksReport(host.root(), {{"eth0", {"10.1.0.7", "fd00::7"}}});
  EXPECT_EQ(report,
            "  eth0: up, 10.1.0.7 fd00::7, 25 Gbit/s, MTU 9000, driver mlx5_core, NUMA node 1\n"
            "  eth1: up, but without a link, MTU 1500\n"
            "  eth2: down, MTU 1500\n"
            "  no RDMA device (/sys/class/infiniband)\n");
}

TEST(LinksReportTest, RdmaDevicesByPort) {
  const HostTree host;
  const std::string device = "/sys/class/infiniband/mlx5_0/";
  host.File(device + "ports/1/state", "4: ACTIVE\n");
  host.File(device + "ports/1/link_layer", "Ethernet\n");
  host.File(device + "ports/1/rate", "100 Gb/sec (4X EDR)\n");
  host.File(device + "ports/1/gid_attrs/ndevs/0", "eth0\n");
  host.File(device + "ports/2/state", "1: DOWN\n");
  host.File(device + "ports/2/link_layer", "InfiniBand\n");
  host.File(device + "ports/2/rate", "40 Gb/sec (4X QDR)\n");
  host.File(device + "device/numa_node", "0\n");
  host.Link(device + "device/driver", "../../drivers/mlx5_core");
  host.File("/sys/class/infiniband/rxe9/node_type", "1: CA\n");
  EXPECT_EQ(LinksReport(host.root(), {}),
            "  mlx5_0 port 1: ACTIVE, Ethernet (RoCE), 100 Gb/sec (4X EDR), of eth0, driver mlx5_core, NUMA node 0\n"
            "  mlx5_0 port 2: DOWN, InfiniBand, 40 Gb/sec (4X QDR), driver mlx5_core, NUMA node 0\n"
            "  rxe9: no port\n");
}

TEST(LinksReportTest, CongestionControl) {
  const HostTree host;
  host.File("/proc/sys/net/ipv4/tcp_congestion_control", "bbr\n");
  host.File("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr cubic\n");
  EXPECT_EQ(LinksReport(host.root(), {}),
            "  TCP: congestion control bbr (net.ipv4.tcp_congestion_control; this kernel has reno bbr cubic)\n"
            "  no RDMA device (/sys/class/infiniband)\n");
}

TEST(LinksReportTest, OfThisHost) {
  const AddressesByInterface addresses = InterfaceAddresses();
  ASSERT_TRUE(addresses.count("lo"));
  EXPECT_THAT(addresses.at("lo"), Contains("127.0.0.1"));
  for (const auto& [interface, of_interface] : addresses) {
    for (const std::string& address : of_interface) EXPECT_THAT(address, Not(HasSubstr("fe80"))) << interface;
  }
  EXPECT_THAT(LinksReport("", addresses), HasSubstr("  lo: up, 127.0.0.1"));
}

}  // namespace
}  // namespace byteps
