#include "transport_plugins/libfabric/open_transport.h"

#include <utility>

#include "transport_plugins/libfabric/connected_transport.h"
#include "transport_plugins/libfabric/datagram_transport.h"

namespace byteps::fabric {

std::unique_ptr<Transport> OpenTransport(const Provider& provider, const Host& host,
                                         const bps_transport_open_args& args, std::string* reason) {
  if (!provider.connected) {
    std::unique_ptr<DatagramEndpoint> endpoint = DatagramEndpoint::Open(provider, host, args, reason);
    if (endpoint == nullptr) return nullptr;
    return std::make_unique<DatagramTransport>(host, std::move(endpoint), nullptr, args.job_key);
  }
  std::unique_ptr<Endpoint> endpoint = Endpoint::Open(provider, host, args.local_host, args.device, reason);
  if (endpoint == nullptr) return nullptr;
  return std::make_unique<ConnectedTransport>(host, std::move(endpoint), args.job_key);
}

}  // namespace byteps::fabric
