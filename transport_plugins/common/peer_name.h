// peer_name.h - who a peer is, for logs.
//
//     PeerName(args)      // "server 1 (host b, 10.0.0.2, pid 42)", as the host says; "peer 3" where it does not
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_PEER_NAME_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_PEER_NAME_H_

#include <string>

#include "abi/transport.h"

namespace byteps::transports {

inline std::string PeerName(const bps_connect_args& args) {
  return args.name != nullptr ? args.name : "peer " + std::to_string(args.peer);
}

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_PEER_NAME_H_
