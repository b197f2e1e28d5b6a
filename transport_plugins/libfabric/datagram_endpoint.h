// datagram_endpoint.h - an FI_EP_RDM endpoint: one for all peers, which are entries of its address vector.
//
//     std::string reason;
//     std::unique_ptr<DatagramEndpoint> endpoint = DatagramEndpoint::Open(provider, host, args, &reason);
//     fi_addr_t peer; int code = endpoint->Insert(address, &peer);
//
// Threads: one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_ENDPOINT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_ENDPOINT_H_

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <map>
#include <memory>
#include <string>

#include "abi/transport.h"
#include "transport_plugins/common/host.h"
#include "transport_plugins/libfabric/datagram_wire.h"
#include "transport_plugins/libfabric/fid.h"
#include "transport_plugins/libfabric/memory_domain.h"
#include "transport_plugins/libfabric/provider_table.h"
#include "transport_plugins/libfabric/sleeper.h"

namespace byteps::fabric {

class DatagramEndpoint : public DatagramWire {
 public:
  // nullptr, and the reason, if that is not possible here.
  static std::unique_ptr<DatagramEndpoint> Open(const Provider& provider, const transports::Host& host,
                                                const bps_transport_open_args& args, std::string* reason);

  const Provider& provider() const { return provider_; }
  const fi_info& info() const { return *info_; }
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  std::string Print(const std::string& address) const;
  MemoryDomain memory() const { return {domain_.get(), info_.get()}; }
  // Writes are the device's own, and a registration that is closed stops them: EFA with RDMA write. Otherwise the
  // provider imitates them in software, and they cannot be stopped.
  bool WritesInHardware() const { return writes_in_hardware_; }

  // The same number for the same address.
  int Insert(const std::string& address, fi_addr_t* peer);
  // Nothing is sent or received any more; buffers may go.
  void Close() { endpoint_.reset(); }

  // -1 if the provider has none.
  int wait_fd() const { return sleeps_ ? sleeper_.fd() : -1; }
  bool Arm(Clock::time_point wake) { return sleeper_.Arm(fabric_.get(), wake); }

  int Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) override;
  int Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) override;
  int Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate, const RemoteMemory& at,
            fi_context2* context) override;
  size_t Read(WireCompletion* completions, size_t capacity) override;
  bool Quiet() const override { return true; }

 private:
  DatagramEndpoint(const Provider& provider, InfoPtr info) : provider_(provider), info_(std::move(info)) {}
  int Build();

  const Provider& provider_;
  InfoPtr info_;
  std::string name_, address_, failed_step_;
  bool writes_in_hardware_ = false, sleeps_ = false;
  FidPtr<fid_fabric> fabric_;
  FidPtr<fid_domain> domain_;
  FidPtr<fid_av> av_;
  FidPtr<fid_cq> cq_;
  FidPtr<fid_ep> endpoint_;
  Sleeper sleeper_;
  std::map<std::string, fi_addr_t> peers_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_ENDPOINT_H_
