// endpoint.h - what all connections of one transport share: domain, completion queue, listener, sleep descriptor.
//
//     std::string reason;
//     std::unique_ptr<Endpoint> endpoint = Endpoint::Open(provider, host, local_host, device, &reason);
//
// Connections are libfabric's FI_EP_MSG endpoints, one for each peer, and not one FI_EP_RDM endpoint for all: closing
// the endpoint of a peer is then the fence. The reliable-datagram layer of libfabric 1.17 (ofi_rxm) has no way to end
// one connection: a write that is half received when its registration is closed lands to the end all the same, and
// FI_AV_REMOVE_CLEANUP=1, which is meant for this, crashes it (both measured; README.md).
//
// Threads: one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_ENDPOINT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_ENDPOINT_H_

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transport_plugins/common/host.h"
#include "transport_plugins/libfabric/door.h"
#include "transport_plugins/libfabric/fid.h"
#include "transport_plugins/libfabric/memory_domain.h"
#include "transport_plugins/libfabric/provider_table.h"
#include "transport_plugins/libfabric/sleeper.h"

namespace byteps::fabric {

// A connection that comes in has its socket, and, behind the guard of the port, two more; one for the moment.
inline constexpr size_t kDescriptorsPerConnection = 4;

class Endpoint {
 public:
  // nullptr, and the reason, if that is not possible here. `local_host` and `device` (an interface) may be NULL.
  static std::unique_ptr<Endpoint> Open(const Provider& provider, const transports::Host& host, const char* local_host,
                                        const char* device, std::string* reason);

  const Provider& provider() const { return provider_; }
  const fi_info& info() const { return *info_; }
  const std::string& name() const { return name_; }  // "tcp": both ends must have the same
  fid_domain* domain() const { return domain_.get(); }
  fid_cq* cq() const { return cq_.get(); }
  fid_eq* eq() const { return eq_.get(); }
  fid_pep* listener() const { return listener_.get(); }
  const std::string& address() const { return address_; }  // of the listener, as libfabric writes it

  // What stands in front of the listener; nullptr where there is none.
  Door* door() const { return door_.get(); }

  MemoryDomain memory() const { return {domain_.get(), info_.get()}; }
  bool RegistersLocalMemory() const { return memory().RegistersLocalMemory(); }
  // An immediate's upper half travels too, and can say whose it is.
  bool WideImmediates() const { return info_->domain_attr->cq_data_size >= 8; }

  // Provider::silent_sends, unless something was set that mixes up their order.
  bool SendsSilently() const { return silent_sends_; }

  size_t CompletionQueueSize() const { return queue_size_; }
  // What a failed registration may be due to, to be put behind its error; "" if nothing is known.
  std::string AdviceOnMemory() const;

  // An address for people.
  std::string Print(const std::string& address) const;

  // A connection to `address` (of another Endpoint), or for a request that the listener got. nullptr and a libfabric
  // code if that fails.
  FidPtr<fid_ep> NewConnection(const std::string& address, int* code);
  FidPtr<fid_ep> NewConnection(fi_info* request, int* code);

  // For poll(2); -1 if the provider has none.
  int wait_fd() const { return sleeper_.fd(); }
  // True: nothing waits to be fetched, and wait_fd becomes readable when something comes, at the latest at `wake`.
  bool Arm(Clock::time_point wake) { return sleeper_.Arm(fabric_.get(), wake); }

 private:
  Endpoint(const Provider& provider, InfoPtr info) : provider_(provider), info_(std::move(info)) {}
  int Build(const transports::Host& host);
  int Listen(const transports::Host& host);
  int OpenQueue();
  FidPtr<fid_ep> Enable(fi_info* info, int* code);

  const Provider& provider_;
  InfoPtr info_;
  std::string name_, address_, failed_step_;
  size_t queue_size_ = 0;
  bool silent_sends_ = false;
  FidPtr<fid_fabric> fabric_;
  FidPtr<fid_domain> domain_;
  FidPtr<fid_eq> eq_;
  FidPtr<fid_cq> cq_;
  FidPtr<fid_pep> listener_;
  std::unique_ptr<Door> door_;
  Sleeper sleeper_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_ENDPOINT_H_
