#include "transport_plugins/libfabric/datagram_endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <iterator>

#include "transport_plugins/libfabric/fabric_library.h"
#include "transport_plugins/libfabric/provider_info.h"

namespace byteps::fabric {
namespace {

constexpr size_t kQueueSize = 8192;
// fi_getopt of the EFA provider, a bool: writes are imitated. libfabric 1.17 has neither the name nor the writes.
constexpr int kEfaEmulatedWrite = -(0xefa << 16) + 2;

}  // namespace

std::unique_ptr<DatagramEndpoint> DatagramEndpoint::Open(const Provider& provider, const transports::Host& host,
                                                         const bps_transport_open_args& args, std::string* reason) {
  InfoPtr info = FindInfo(provider, host, args.local_host, args.device, reason);
  if (info == nullptr) return nullptr;
  std::unique_ptr<DatagramEndpoint> endpoint(new DatagramEndpoint(provider, std::move(info)));
  if (const int code = endpoint->Build(); code != 0) {
    *reason = "cannot open provider \"" + std::string(provider.fabric_name) + "\" of libfabric " + FabricVersion() +
              " (" + endpoint->failed_step_ + ": " + ErrorText(code) + ")";
    return nullptr;
  }
  BPS_TRANSPORT_LOG(host, INFO,
                    DescribeInfo(endpoint->info()) + ", address " + endpoint->Print(endpoint->address_) + ", wait " +
                        (endpoint->sleeps_ ? "fd" : "none") + ", writes " +
                        (endpoint->writes_in_hardware_ ? "by the device" : "as messages"));
  return endpoint;
}

int DatagramEndpoint::Build() {
  auto step = [this](const char* name, int code) {
    failed_step_ = name;
    return code;
  };
  int code = step("fi_fabric", fi_fabric(info_->fabric_attr, Out(fabric_), nullptr));
  if (code != 0) return code;
  code = step("fi_domain", fi_domain(fabric_.get(), info_.get(), Out(domain_), nullptr));
  if (code != 0) return code;
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  code = step("fi_av_open", fi_av_open(domain_.get(), &av, Out(av_), nullptr));
  if (code != 0) return code;
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_DATA;
  cq.size = kQueueSize;
  cq.wait_obj = FI_WAIT_FD;
  code = fi_cq_open(domain_.get(), &cq, Out(cq_), nullptr);
  sleeps_ = code == 0 && sleeper_.Add(&cq_->fid) == 0;
  if (!sleeps_) {  // then the owner polls
    cq.wait_obj = FI_WAIT_NONE;
    cq_.reset();
    code = step("fi_cq_open", fi_cq_open(domain_.get(), &cq, Out(cq_), nullptr));
    if (code != 0) return code;
  }
  code = step("fi_endpoint", fi_endpoint(domain_.get(), info_.get(), Out(endpoint_), nullptr));
  if (code == 0) code = step("fi_ep_bind", fi_ep_bind(endpoint_.get(), &av_->fid, 0));
  if (code == 0) code = step("fi_ep_bind", fi_ep_bind(endpoint_.get(), &cq_->fid, FI_TRANSMIT | FI_RECV));
  if (code == 0) code = step("fi_enable", fi_enable(endpoint_.get()));
  if (code != 0) return code;
  bool emulated = true;
  size_t size = sizeof emulated;
  if (provider_.writes == Writes::kByTheDevice &&
      fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, kEfaEmulatedWrite, &emulated, &size) != 0) {
    emulated = true;  // this libfabric does not know the question
  }
  writes_in_hardware_ = !emulated || provider_.writes == Writes::kRemote;
  char address[256];
  size = sizeof address;
  code = step("fi_getname", fi_getname(&endpoint_->fid, address, &size));
  if (code != 0) return code;
  address_.assign(address, size);
  name_ = info_->fabric_attr->prov_name;
  return 0;
}

std::string DatagramEndpoint::Print(const std::string& address) const { return PrintAddress(*info_, address.data()); }

int DatagramEndpoint::Insert(const std::string& address, fi_addr_t* peer) {
  if (auto known = peers_.find(address); known != peers_.end()) {
    *peer = known->second;
    return 0;
  }
  const int count = fi_av_insert(av_.get(), address.data(), 1, peer, 0, nullptr);
  if (count != 1) return count < 0 ? count : -FI_EADDRNOTAVAIL;
  peers_.emplace(address, *peer);
  return 0;
}

int DatagramEndpoint::Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) {
  return static_cast<int>(fi_recv(endpoint_.get(), buffer, size, descriptor, FI_ADDR_UNSPEC, context));
}

int DatagramEndpoint::Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) {
  return static_cast<int>(fi_send(endpoint_.get(), data, size, descriptor, to, context));
}

int DatagramEndpoint::Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate,
                            const RemoteMemory& at, fi_context2* context) {
  return static_cast<int>(
      fi_writedata(endpoint_.get(), data, size, descriptor, immediate, to, at.address, at.key, context));
}

size_t DatagramEndpoint::Read(WireCompletion* completions, size_t capacity) {
  fi_cq_data_entry entries[32];
  const ssize_t count = fi_cq_read(cq_.get(), entries, std::min(capacity, std::size(entries)));
  if (count == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(cq_.get(), &error, 0) < 0) return 0;
    char text[256] = "";
    const char* detail = fi_cq_strerror(cq_.get(), error.prov_errno, error.err_data, text, sizeof text);
    completions[0] = {};
    // Of a peer's write that failed here, the context says nothing.
    const bool remote = (error.flags & (FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA)) != 0;
    completions[0].context = remote ? nullptr : error.op_context;
    completions[0].error = error.err == 0 ? FI_EIO : error.err;
    completions[0].detail = ErrorText(error.err) + " (" + (detail == nullptr ? "" : detail) + ")";
    return 1;
  }
  if (count <= 0) return 0;
  for (ssize_t i = 0; i < count; ++i) {
    completions[i] = {};
    completions[i].context = entries[i].op_context;
    completions[i].remote = (entries[i].flags & FI_REMOTE_CQ_DATA) != 0;
    completions[i].data = entries[i].data;
    completions[i].size = entries[i].len;
  }
  return static_cast<size_t>(count);
}

}  // namespace byteps::fabric
