#include "transport_plugins/libfabric/provider_info.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "transport_plugins/libfabric/fabric_library.h"
#include "transport_plugins/libfabric/locked_memory.h"
#include "transport_plugins/libfabric/rdma_device.h"

namespace byteps::fabric {
namespace {

// The oldest interface of libfabric this is written for.
constexpr uint32_t kApi = FI_VERSION(1, 17);
// EFA writes by its device only for those that ask by a newer one.
constexpr uint32_t kDatagramApi = FI_VERSION(1, 20);
constexpr size_t kLeastMessage = 32768;

// What we ask to be talked to with.
uint32_t Api(const Provider& provider) {
  return provider.connected || FI_VERSION_LT(fi_version(), kDatagramApi) ? kApi : kDatagramApi;
}

// Everything this implementation can live with is offered; what comes back is obeyed.
InfoPtr Hints(const Provider& provider) {
  InfoPtr hints(fi_allocinfo());
  if (hints == nullptr) throw std::bad_alloc();
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  if (provider.immediate_takes_receive) hints->mode |= FI_RX_CQ_DATA;
  hints->ep_attr->type = provider.connected ? FI_EP_MSG : FI_EP_RDM;
  // "efa-direct" has the MTU as its largest message; this asks for "efa".
  if (!provider.connected) hints->ep_attr->max_msg_size = kLeastMessage;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->fabric_attr->prov_name = strdup(provider.fabric_name);
  if (provider.bounded_queue) {  // what is not asked for may be the most the device has
    hints->tx_attr->size = provider.depth;
    hints->rx_attr->size = provider.receives();
  }
  return hints;
}

std::string OfferingNothing(const Provider& provider, const std::string& where, int code) {
  return "libfabric " + FabricVersion() + " offers no provider \"" + provider.fabric_name + "\" " + where +
         " (fi_getinfo: " + ErrorText(code) + "); " + provider.missing;
}

// The address to bind, where the device was named; "" and a reason if there is no such, "" and no reason if nothing was
// named.
std::string NamedRdmaAddress(const transports::Host& host, std::string* reason) {
  const std::string device = host.Config("BYTEPS_RDMA_DEVICE"), gid = host.Config("BYTEPS_RDMA_GID_INDEX");
  if (device.empty() && gid.empty()) return "";
  RdmaWish wish;
  if (!device.empty() && !ParseRdmaDevice(device, &wish)) {
    *reason = "BYTEPS_RDMA_DEVICE=" + device + " is neither a device (mlx5_0) nor a device and a port (mlx5_0:1)";
    return "";
  }
  if (!gid.empty()) wish.gid = std::atoi(gid.c_str());  // the configuration has checked that it is a number
  return FindRdmaAddress(RdmaAddresses(), wish, reason);
}

// The address of an interface that others can reach: IPv4 before IPv6, real ones before bridges of containers, which
// have the same address on every host.
std::string ChooseHost(const char* device, std::string* reason) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    *reason = std::string("cannot list network interfaces: ") + std::strerror(errno);
    return "";
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, freeifaddrs);
  std::string best, names;
  int best_rank = 100;
  for (const ifaddrs* at = raw; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const std::string_view name = at->ifa_name;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ", ") + std::string(name);
    if (device != nullptr && name != device) continue;
    char text[INET6_ADDRSTRLEN] = "";
    int rank = family == AF_INET ? 0 : 1;
    if (family == AF_INET) {
      inet_ntop(family, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof text);
    } else {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) continue;  // no use without its scope
      inet_ntop(family, &address->sin6_addr, text, sizeof text);
    }
    if (name.substr(0, 6) == "docker" || name.substr(0, 5) == "virbr" || name.substr(0, 3) == "br-") rank += 4;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0) rank += 8;
    if (rank < best_rank) {
      best_rank = rank;
      best = text;
    }
  }
  if (best.empty()) {
    *reason = device == nullptr ? "no network interface is up"
                                : "no network interface \"" + std::string(device) + "\" is up; there are: " + names;
  }
  return best;
}

std::string Printed(const void* data, fi_type type) {
  char text[512] = "";
  fi_tostr_r(text, sizeof text, data, type);
  return text;
}

// What comes before the first question to the library.
bool Prepare(const Provider& provider, const transports::Host& host, std::string* reason) {
  for (const Provider::Variable& variable : provider.environment) {
    if (variable.name == nullptr || std::getenv(variable.name) != nullptr) continue;
    setenv(variable.name, variable.value, 0);
    BPS_TRANSPORT_LOG(host, INFO, std::string("set ") + variable.name + "=" + variable.value + " for libfabric");
  }
  return LoadFabricLibrary(reason);
}

}  // namespace

std::string FabricVersion() {
  const uint32_t version = fi_version();
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

bool ProbeProvider(const Provider& provider, const transports::Host& host, std::string* reason) {
  if (provider.device != nullptr && RdmaDevices().empty()) {
    *reason = std::string("this host has no ") + provider.device + " device (/sys/class/infiniband is empty)";
    return false;
  }
  // Before the library is asked: to a user without privileges it would show no device at all.
  if (provider.locks_memory) *reason = LockedMemoryComplaint(ReadLockedMemoryLimit());
  if (!reason->empty() || !Prepare(provider, host, reason)) return false;
  // rdma_cm knows its devices by their addresses only.
  std::vector<std::string> sources;
  if (provider.device != nullptr && provider.ip_addressed) {
    for (const RdmaAddress& at : RdmaAddresses()) sources.push_back(at.address);
    if (sources.empty()) {
      *reason = "no RDMA device of this host has an IP address, which connections need";
      return false;
    }
  } else {
    sources.push_back("");
  }
  int code = 0;
  for (const std::string& source : sources) {
    const InfoPtr hints = Hints(provider);
    InfoPtr found;
    code = fi_getinfo(Api(provider), source.empty() ? nullptr : source.c_str(), nullptr, source.empty() ? 0 : FI_SOURCE,
                      hints.get(), Out(found));
    if (code == 0) break;
  }
  if (code != 0) {
    *reason = OfferingNothing(provider, "with messages and writes", code);
    return false;
  }
  return true;
}

InfoPtr FindInfo(const Provider& provider, const transports::Host& host, const char* local_host, const char* device,
                 std::string* reason) {
  if (!Prepare(provider, host, reason)) return nullptr;
  const InfoPtr hints = Hints(provider);
  std::string node = local_host == nullptr ? "" : local_host;
  if (provider.device != nullptr && provider.ip_addressed) {
    const std::string named = NamedRdmaAddress(host, reason);
    if (!reason->empty()) return nullptr;
    if (!named.empty()) node = named;
  }
  if (provider.ip_addressed) {
    if (node.empty()) node = ChooseHost(device, reason);
    if (node.empty()) return nullptr;
  } else if (device != nullptr) {
    hints->domain_attr->name = strdup(device);
  }
  InfoPtr found;
  const auto ask = [&] {
    return fi_getinfo(Api(provider), node.empty() ? nullptr : node.c_str(), nullptr, FI_SOURCE, hints.get(),
                      Out(found));
  };
  int code = -FI_ENODATA;
  if (provider.device_memory && host.Config("BYTEPS_GPU_DIRECT") != "0") {
    const int mode = hints->domain_attr->mr_mode;
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
    code = ask();
    // The same without: its library, or its device, cannot.
    hints->caps &= ~FI_HMEM;
    hints->domain_attr->mr_mode = mode;
  }
  if (code != 0) code = ask();
  if (code != 0) {
    if (provider.device != nullptr && provider.ip_addressed) {
      *reason = node + " is no address of an RDMA device; choose one of these by DMLC_NODE_HOST, DMLC_INTERFACE, or " +
                "BYTEPS_RDMA_DEVICE and BYTEPS_RDMA_GID_INDEX: " + PrintAll(RdmaAddresses());
    } else {
      *reason = OfferingNothing(provider, "on " + (node.empty() ? "any address" : node), code);
    }
    return nullptr;
  }
  return InfoPtr(fi_dupinfo(found.get()));
}

std::string PrintAddress(const fi_info& info, const void* address) {
  if (info.addr_format == FI_SOCKADDR_IN) {
    const auto* in = static_cast<const sockaddr_in*>(address);
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(ntohs(in->sin_port));
  }
  if (info.addr_format == FI_SOCKADDR_IN6) {
    const auto* in = static_cast<const sockaddr_in6*>(address);
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
    return "[" + std::string(text) + "]:" + std::to_string(ntohs(in->sin6_port));
  }
  return "an address of format " + std::to_string(info.addr_format);
}

std::string DescribeInfo(const fi_info& info) {
  return "provider " + std::string(info.fabric_attr->prov_name) + " of libfabric " + FabricVersion() + ", domain " +
         info.domain_attr->name + ", mr_mode [" + Printed(&info.domain_attr->mr_mode, FI_TYPE_MR_MODE) + "], " +
         Printed(&info.domain_attr->data_progress, FI_TYPE_PROGRESS) + ", tx " + std::to_string(info.tx_attr->size) +
         ", rx " + std::to_string(info.rx_attr->size) + ((info.caps & FI_HMEM) != 0 ? ", memory of GPUs" : "");
}

}  // namespace byteps::fabric
