// transport_set.h - several transports as one: each peer is reached over the first that both sides have.
//
//     absl::StatusOr<Transport> all =                                      // shm, then the network
//         OpenTransports(&registry, config, "tcp", "10.0.0.2", log);
//     std::vector<Transport> members;  ...  Transport all = MakeTransportSet(std::move(members));
//
// To its owner the set is a transport like any other: one address, one numbering of peers, one descriptor. Its address
// is the list of its members' addresses; connect() takes the first member that stands in the list of the peer with the
// same name and an equal provider. Both sides look in the same order (the set's), so they choose alike. What a provider
// puts into its name therefore decides who meets: shm's says which host and which namespaces.
//
// Capabilities are what all members can, limits are the least, and keys have the largest size; Transport::CapsOf says
// what can be done towards one peer: beside verbs, shared memory still needs no registered memory. Memory is registered
// with a member when a peer of that member first needs it. A member without peers is not polled.
//
// Whether the memory of a peer can be mapped and copied is no capability of the set, but (CapsOf) of the way to that
// peer.
//
// Threads: one at a time, for all functions: also CopyFrom and CopyTo.
#ifndef BYTEPS_CORE_TRANSPORTS_TRANSPORT_SET_H_
#define BYTEPS_CORE_TRANSPORTS_TRANSPORT_SET_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/plugin/plugin_registry.h"
#include "core/plugin/transport.h"

namespace byteps {

// Most wanted first; at least one. The last is the network: the set goes by its name.
absl::StatusOr<Transport> MakeTransportSet(std::vector<Transport> members);

// `network` (see transport_choice.h), behind shared memory where BYTEPS_SHM allows it and the plugin is there.
absl::StatusOr<Transport> OpenTransports(PluginRegistry* registry, const Config& config, const std::string& network,
                                         const std::string& local_host, const Logger& log);

// The entry of one member in the address of a set; NOT_FOUND if it is none, or has no such member.
absl::StatusOr<std::string> MemberAddress(const std::string& address, const std::string& name);

}  // namespace byteps

#endif  // BYTEPS_CORE_TRANSPORTS_TRANSPORT_SET_H_
