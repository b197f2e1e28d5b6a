#include "tools/info/links_report.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

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
  host.File(net + "eth0/ifindex", "2\n");
  host.File(net + "eth0/speed", "25000\n");
  host.File(net + "eth0/device/numa_node", "1\n");
  host.Link(net + "eth0/device/driver", "../../bus/pci/drivers/mlx5_core");
  host.File(net + "eth1/ifindex", "3\n");
  host.File(net + "eth1/speed", "-1\n");
  host.File(net + "eth2/ifindex", "4\n");
  host.File(net + "bonding_masters", "\n");
  const std::string report = LinksReport(host.root(), {{"eth0", {2, true, true, 9000, {"10.1.0.7", "fd00::7"}}},
                                                       {"eth1", {3, true, false, 1500, {}}},
                                                       {"eth2", {4, false, false, 1500, {}}}});
  EXPECT_EQ(report,
            "  eth0: up, 10.1.0.7 fd00::7, MTU 9000, 25 Gbit/s, driver mlx5_core, NUMA node 1\n"
            "  eth1: up, but without a link, MTU 1500\n"
            "  eth2: down, MTU 1500\n"
            "  no RDMA device (/sys/class/infiniband)\n");
}

// `unshare -n` leaves /sys as it was mounted.
TEST(LinksReportTest, NoInterfaceOfAnotherNamespace) {
  const HostTree host;
  const std::string net = "/sys/class/net/";
  host.File(net + "lo/ifindex", "1\n");
  host.File(net + "eth0/ifindex", "2\n");
  host.File(net + "eth0/speed", "25000\n");
  EXPECT_EQ(LinksReport(host.root(), {{"lo", {1, false, false, 65536, {}}}, {"eth0", {7, true, true, 1500, {}}}}),
            "  eth0: up, MTU 1500\n"
            "  lo: down, MTU 65536\n"
            "  /sys is of another network namespace, whose eth0 is not reachable from here: rates and drivers are not "
            "known, nor whose the RDMA devices are\n"
            "  no RDMA device (/sys/class/infiniband)\n");
}

TEST(LinksReportTest, OfAFreshNamespace) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) _exit(2);
    const InterfaceMap interfaces = Interfaces();
    const std::string report = LinksReport("", interfaces);
    std::fprintf(stderr, "%s", report.c_str());
    _exit(interfaces.size() == 1 && interfaces.count("lo") == 1 && report.rfind("  lo: down", 0) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no network namespace can be made here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
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

TEST(LinksReportTest, WhatAPauseDoesToTcp) {
  const HostTree host;
  host.File("/proc/sys/net/ipv4/tcp_congestion_control", "cubic\n");
  host.File("/proc/sys/net/ipv4/tcp_available_congestion_control", "cubic\n");
  host.File("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n");
  EXPECT_THAT(LinksReport(host.root(), {}), HasSubstr("tcp_slow_start_after_idle 1"));
  host.File("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0\n");
  EXPECT_THAT(LinksReport(host.root(), {}), Not(HasSubstr("tcp_slow_start_after_idle")));
}

TEST(LinksReportTest, OfThisHost) {
  const InterfaceMap interfaces = Interfaces();
  ASSERT_TRUE(interfaces.count("lo"));
  EXPECT_THAT(interfaces.at("lo").addresses, Contains("127.0.0.1"));
  for (const auto& [name, facts] : interfaces) {
    for (const std::string& address : facts.addresses) EXPECT_THAT(address, Not(HasSubstr("fe80"))) << name;
  }
  EXPECT_THAT(LinksReport("", interfaces), HasSubstr("  lo: up, 127.0.0.1"));
}

}  // namespace
}  // namespace byteps
