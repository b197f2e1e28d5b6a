#include "transport_plugins/libfabric/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "transport_plugins/libfabric/fabric_library.h"
#include "transport_plugins/libfabric/locked_memory.h"
#include "transport_plugins/libfabric/rdma_device.h"

namespace byteps::fabric {
namespace {

// The oldest interface of libfabric this is written for, and what we ask to be talked to with.
constexpr uint32_t kApi = FI_VERSION(1, 17);
// Of the completion queue: what is asked for first; halved until the device has it.
constexpr size_t kBoundedQueueSize = 32768, kQueueSize = 4096;

std::string Version() {
  const uint32_t version = fi_version();
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

// Everything this implementation can live with is offered; what comes back is obeyed.
InfoPtr Hints(const Provider& provider) {
  InfoPtr hints(fi_allocinfo());
  if (hints == nullptr) throw std::bad_alloc();
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  if (provider.immediate_takes_receive) hints->mode |= FI_RX_CQ_DATA;
  hints->ep_attr->type = FI_EP_MSG;
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
  return "libfabric " + Version() + " offers no provider \"" + provider.fabric_name + "\" " + where +
         " (fi_getinfo: " + fi_strerror(-code) + "); " + provider.missing;
}

// The address to bind, where the device was named; "" and a reason if there is no such, "" and no reason if nothing was
// named.
std::string NamedRdmaAddress(const Host& host, std::string* reason) {
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

std::string PrintedAddress(const fi_info& info, const void* address) {
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

std::string Printed(const void* data, fi_type type) {
  char text[512] = "";
  fi_tostr_r(text, sizeof text, data, type);
  return text;
}

}  // namespace

Endpoint::Endpoint(const Provider& provider, InfoPtr info)
    : provider_(provider),
      info_(std::move(info)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

bool Endpoint::Probe(const Provider& provider, std::string* reason) {
  if (provider.rdma_device && RdmaDevices().empty()) {
    *reason = "this host has no RDMA device (/sys/class/infiniband is empty)";
    return false;
  }
  if (!LoadFabricLibrary(reason)) return false;
  // rdma_cm knows its devices by their addresses only.
  std::vector<std::string> sources;
  if (provider.rdma_device && provider.ip_addressed) {
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
    code = fi_getinfo(kApi, source.empty() ? nullptr : source.c_str(), nullptr, source.empty() ? 0 : FI_SOURCE,
                      hints.get(), Out(found));
    if (code == 0) break;
  }
  if (code != 0) {
    *reason = OfferingNothing(provider, "with messages and writes", code);
    return false;
  }
  if (provider.locks_memory) *reason = LockedMemoryComplaint(ReadLockedMemoryLimit());
  return reason->empty();
}

std::unique_ptr<Endpoint> Endpoint::Open(const Provider& provider, const Host& host, const char* local_host,
                                         const char* device, std::string* reason) {
  if (!LoadFabricLibrary(reason)) return nullptr;
  const InfoPtr hints = Hints(provider);
  std::string node = local_host == nullptr ? "" : local_host;
  if (provider.rdma_device && provider.ip_addressed) {
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
  int code = fi_getinfo(kApi, node.empty() ? nullptr : node.c_str(), nullptr, FI_SOURCE, hints.get(), Out(found));
  if (code != 0) {
    if (provider.rdma_device && provider.ip_addressed) {
      *reason = node + " is no address of an RDMA device; choose one of these by DMLC_NODE_HOST, DMLC_INTERFACE, or " +
                "BYTEPS_RDMA_DEVICE and BYTEPS_RDMA_GID_INDEX: " + PrintAll(RdmaAddresses());
    } else {
      *reason = OfferingNothing(provider, "on " + (node.empty() ? "any address" : node), code);
    }
    return nullptr;
  }
  std::unique_ptr<Endpoint> endpoint(new Endpoint(provider, InfoPtr(fi_dupinfo(found.get()))));
  code = endpoint->Build();
  if (code != 0) {
    *reason = "cannot open provider \"" + std::string(provider.fabric_name) + "\" of libfabric " + Version() + " on " +
              (node.empty() ? "any address" : node) + " (" + endpoint->failed_step_ + ": " + fi_strerror(-code) + ")";
    return nullptr;
  }
  const fi_info& info = endpoint->info();
  const std::string mr_mode = Printed(&info.domain_attr->mr_mode, FI_TYPE_MR_MODE);
  BPS_FABRIC_LOG(host, INFO,
                 "provider " + std::string(info.fabric_attr->prov_name) + " of libfabric " + Version() + ", domain " +
                     info.domain_attr->name + ", address " + endpoint->Print(endpoint->address_) + ", mr_mode [" +
                     mr_mode + "], " + Printed(&info.domain_attr->data_progress, FI_TYPE_PROGRESS) + ", tx " +
                     std::to_string(info.tx_attr->size) + ", rx " + std::to_string(info.rx_attr->size) + ", wait " +
                     (endpoint->wait_fd() >= 0 ? "fd" : "none"));
  return endpoint;
}

int Endpoint::Build() {
  auto step = [this](const char* name, int code) {
    failed_step_ = name;
    return code;
  };
  int code = step("fi_fabric", fi_fabric(info_->fabric_attr, Out(fabric_), nullptr));
  if (code != 0) return code;
  code = step("fi_domain", fi_domain(fabric_.get(), info_.get(), Out(domain_), nullptr));
  if (code != 0) return code;

  fi_eq_attr eq_attr{};
  eq_attr.wait_obj = FI_WAIT_FD;
  code = step("fi_eq_open", fi_eq_open(fabric_.get(), &eq_attr, Out(eq_), nullptr));
  if (code != 0) return code;
  code = step("fi_cq_open", OpenQueue());
  if (code != 0) return code;

  code = step("fi_passive_ep", fi_passive_ep(fabric_.get(), info_.get(), Out(listener_), nullptr));
  if (code != 0) return code;
  code = step("fi_pep_bind", fi_pep_bind(listener_.get(), &eq_->fid, 0));
  if (code != 0) return code;
  code = step("fi_listen", fi_listen(listener_.get()));
  if (code != 0) return code;
  char address[256];
  size_t size = sizeof address;
  code = step("fi_getname", fi_getname(&listener_->fid, address, &size));
  if (code != 0) return code;
  address_.assign(address, size);
  name_ = info_->fabric_attr->prov_name;

  failed_step_ = "epoll";
  if (epoll_.get() < 0 || timer_.get() < 0) return -errno;
  for (fid* object : {&cq_->fid, &eq_->fid}) {
    int fd = -1;
    code = step("fi_control(FI_GETWAIT)", fi_control(object, FI_GETWAIT, &fd));
    if (code != 0) return code;
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return -errno;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event) != 0) return -errno;
  return 0;
}

int Endpoint::OpenQueue() {
  fi_cq_attr attributes{};
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.wait_obj = FI_WAIT_FD;
  for (queue_size_ = provider_.bounded_queue ? kBoundedQueueSize : kQueueSize;; queue_size_ /= 2) {
    attributes.size = queue_size_;
    const int code = fi_cq_open(domain_.get(), &attributes, Out(cq_), nullptr);
    if (code == 0 || queue_size_ <= 1024) return code;
  }
}

std::string Endpoint::AdviceOnMemory() const {
  if (!provider_.locks_memory) return "";
  const LockedMemoryLimit limit = ReadLockedMemoryLimit();
  return limit.unlimited ? "" : "; " + LockedMemoryComplaint(limit, std::max(kLeastLockedMemory, 2 * limit.bytes));
}

std::string Endpoint::Print(const std::string& address) const { return PrintedAddress(*info_, address.data()); }

FidPtr<fid_ep> Endpoint::NewConnection(const std::string& address, int* code) {
  const InfoPtr info(fi_dupinfo(info_.get()));
  if (info == nullptr) throw std::bad_alloc();
  std::free(info->dest_addr);
  info->dest_addr = std::malloc(address.size());
  if (info->dest_addr == nullptr) throw std::bad_alloc();
  std::memcpy(info->dest_addr, address.data(), address.size());
  info->dest_addrlen = address.size();
  return Enable(info.get(), code);
}

FidPtr<fid_ep> Endpoint::NewConnection(fi_info* request, int* code) { return Enable(request, code); }

FidPtr<fid_ep> Endpoint::Enable(fi_info* info, int* code) {
  FidPtr<fid_ep> connection;
  *code = fi_endpoint(domain_.get(), info, Out(connection), nullptr);
  if (*code != 0) return nullptr;
  *code = fi_ep_bind(connection.get(), &eq_->fid, 0);
  if (*code == 0) *code = fi_ep_bind(connection.get(), &cq_->fid, FI_TRANSMIT | FI_RECV);
  if (*code == 0) *code = fi_enable(connection.get());
  return *code == 0 ? std::move(connection) : nullptr;
}

uint64_t Endpoint::RandomKey() {
  uint64_t key = 0;
  if (getrandom(&key, sizeof key, 0) != static_cast<ssize_t>(sizeof key)) {
    throw std::runtime_error("the kernel gives no random numbers");
  }
  // Providers with small keys say so; all others take any number.
  const size_t size = info_->domain_attr->mr_key_size;
  return size >= sizeof key || size == 0 ? key : key & ((uint64_t{1} << (8 * size)) - 1);
}

bool Endpoint::Arm(Clock::time_point wake) {
  // An alarm that comes early does no harm: it is set anew only when it is over, or would come too late.
  if (wake < alarm_ || alarm_ <= Clock::now()) SetAlarm(wake);
  fid* objects[] = {&cq_->fid, &eq_->fid};
  return fi_trywait(fabric_.get(), objects, 2) == 0;
}

void Endpoint::SetAlarm(Clock::time_point wake) {
  alarm_ = wake;
  itimerspec timer{};
  if (wake != kNever) {
    const int64_t time = std::chrono::nanoseconds(wake.time_since_epoch()).count();
    timer.it_value.tv_sec = time / 1'000'000'000;
    timer.it_value.tv_nsec = time % 1'000'000'000;
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &timer, nullptr);
}

}  // namespace byteps::fabric
