#include "transport_plugins/libfabric/endpoint.h"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "transport_plugins/libfabric/descriptors.h"
#include "transport_plugins/libfabric/fabric_library.h"
#include "transport_plugins/libfabric/locked_memory.h"
#include "transport_plugins/libfabric/provider_info.h"

namespace byteps::fabric {
namespace {

// Of the completion queue: what is asked for first; halved until the device has it. Soft-RoCE has 32,767, and libfabric
// 1.17 leaves two descriptors behind when it is refused: better not to ask for too much.
constexpr size_t kBoundedQueueSize = 32000, kQueueSize = 4096;

// What its user can do about it.
std::string Advice(int code, const char* local_host) {
  if (code == -EADDRNOTAVAIL && local_host != nullptr) {
    return "; no network interface of this host has that address: see DMLC_NODE_HOST and DMLC_INTERFACE";
  }
  // (The text of EMFILE itself has it already.)
  return code != -EMFILE && FreeDescriptors(kDescriptorsPerConnection) < kDescriptorsPerConnection ? DescriptorAdvice()
                                                                                                   : "";
}

}  // namespace

std::unique_ptr<Endpoint> Endpoint::Open(const Provider& provider, const transports::Host& host, const char* local_host,
                                         const char* device, std::string* reason) {
  InfoPtr found = FindInfo(provider, host, local_host, device, reason);
  if (found == nullptr) return nullptr;
  std::unique_ptr<Endpoint> endpoint(new Endpoint(provider, std::move(found)));
  if (const int code = endpoint->Build(host); code != 0) {
    *reason = "cannot open provider \"" + std::string(provider.fabric_name) + "\" of libfabric " + FabricVersion() +
              " on " + (local_host == nullptr ? "any address" : local_host) + " (" + endpoint->failed_step_ + ": " +
              ErrorText(code) + ")" + Advice(code, local_host);
    return nullptr;
  }
  BPS_TRANSPORT_LOG(host, INFO,
                    DescribeInfo(endpoint->info()) + ", address " + endpoint->Print(endpoint->address_) + ", wait " +
                        (endpoint->wait_fd() >= 0 ? "fd" : "none"));
  return endpoint;
}

int Endpoint::Build(const transports::Host& host) {
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
  code = Listen(host);
  if (code != 0) return code;
  name_ = info_->fabric_attr->prov_name;
  // What the kernel sends from where it lies ends when the peer has it, and not in order with what was copied.
  silent_sends_ = provider_.silent_sends && std::getenv("FI_TCP_ZEROCOPY_SIZE") == nullptr;

  for (fid* object : {&cq_->fid, &eq_->fid}) {
    code = step("fi_control(FI_GETWAIT)", sleeper_.Add(object));
    if (code != 0) return code;
  }
  return 0;
}

int Endpoint::Listen(const transports::Host& host) {
  const auto find_address = [this] {
    failed_step_ = "fi_getname";
    char address[256];
    size_t size = sizeof address;
    const int code = fi_getname(&listener_->fid, address, &size);
    if (code == 0) address_.assign(address, size);
    return code;
  };
  if (provider_.open_to_strangers) {
    if (const int code = find_address(); code != 0) return code;
    std::string why;
    door_ = Door::Replace(address_, &why);
    if (door_ == nullptr && FreeDescriptors(kDescriptorsPerConnection) < kDescriptorsPerConnection) return -EMFILE;
    if (door_ == nullptr) {
      BPS_TRANSPORT_LOG(
          host, WARNING,
          "the port " + Print(address_) + " is not guarded (" + why +
              "): a process that can reach it holds as many of this process's descriptors as it opens connections");
    }
  }
  failed_step_ = "fi_listen";
  if (const int code = fi_listen(listener_.get()); code != 0) return code;
  if (door_ == nullptr) return find_address();
  failed_step_ = "listen";
  if (const int error = door_->Listen(); error != 0) return -error;
  return sleeper_.AddDescriptor(door_->fd());
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

std::string Endpoint::Print(const std::string& address) const { return PrintAddress(*info_, address.data()); }

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
  const uint64_t silent = silent_sends_ ? FI_SELECTIVE_COMPLETION : 0;
  if (*code == 0) *code = fi_ep_bind(connection.get(), &cq_->fid, FI_TRANSMIT | silent);
  if (*code == 0) *code = fi_ep_bind(connection.get(), &cq_->fid, FI_RECV);
  if (*code == 0) *code = fi_enable(connection.get());
  return *code == 0 ? std::move(connection) : nullptr;
}

}  // namespace byteps::fabric
