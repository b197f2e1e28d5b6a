#include "transport_plugins/libfabric/open_transport.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "transport_plugins/libfabric/connected_transport.h"
#include "transport_plugins/libfabric/datagram_transport.h"
#include "transport_plugins/libfabric/lane_count.h"
#include "transport_plugins/libfabric/laned_transport.h"

namespace byteps::fabric {

std::unique_ptr<Transport> OpenTransport(const Provider& provider, const transports::Host& host,
                                         const bps_transport_open_args& args, std::string* reason) {
  if (!provider.connected) {
    std::unique_ptr<DatagramEndpoint> endpoint = DatagramEndpoint::Open(provider, host, args, reason);
    if (endpoint == nullptr) return nullptr;
    return std::make_unique<DatagramTransport>(host, std::move(endpoint), nullptr, args.job_key);
  }
  std::vector<std::unique_ptr<ConnectedTransport>> lanes;
  size_t count = 1;
  while (lanes.size() < count) {
    std::unique_ptr<Endpoint> endpoint = Endpoint::Open(provider, host, args.local_host, args.device, reason);
    if (endpoint == nullptr) return nullptr;
    if (lanes.empty() && provider.lanes) {
      count = std::min(LaneCount(host, endpoint->info()), kMostLanes);
    }
    lanes.push_back(std::make_unique<ConnectedTransport>(host, std::move(endpoint), args.job_key));
  }
  if (count == 1) return std::move(lanes.front());
  return std::make_unique<LanedTransport>(host, std::move(lanes), LeastForLanes(host));
}

}  // namespace byteps::fabric
