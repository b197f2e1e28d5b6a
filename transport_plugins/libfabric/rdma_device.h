// rdma_device.h - the RDMA devices of this host, and the network addresses by which the connection manager reaches
// them.
//
//     for (const RdmaAddress& at : RdmaAddresses()) ...     // rxe0, port 1, GID 1, interface v0, "10.5.0.1"
//     std::string address = FindRdmaAddress(RdmaAddresses(), {.device = "mlx5_0", .port = 1, .gid = 3}, &reason);
//
// Connections are made by rdma_cm, for which a device, a port and a GID are one thing: an IP address. On RoCE each GID
// is the address of a network interface; on InfiniBand the addresses are those of the IPoIB interfaces of the port.
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_RDMA_DEVICE_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_RDMA_DEVICE_H_

#include <string>
#include <string_view>
#include <vector>

namespace byteps::fabric {

struct RdmaAddress {
  std::string device;
  int port = 0;
  int gid = -1;  // -1: not by a GID (IPoIB)
  std::string interface;
  std::string address;  // numeric
};

// What was asked for; what is not is 0, -1 or "".
struct RdmaWish {
  std::string device;
  int port = 0;
  int gid = -1;
};

// "mlx5_0" or "mlx5_0:1". False: it is neither.
bool ParseRdmaDevice(std::string_view text, RdmaWish* wish);

// Names of the devices; `root` is another /sys in tests.
std::vector<std::string> RdmaDevices(const std::string& root = "/sys");
std::vector<RdmaAddress> RdmaAddresses(const std::string& root = "/sys");

// The first that fits (RoCE v2 before v1 is the kernel's order, IPv4 before IPv6 is ours), or "" and the reason with
// all there are.
std::string FindRdmaAddress(const std::vector<RdmaAddress>& addresses, const RdmaWish& wish, std::string* reason);

// "rxe0 port 1 GID 1 (v0) 10.5.0.1, ..."
std::string PrintAll(const std::vector<RdmaAddress>& addresses);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_RDMA_DEVICE_H_
