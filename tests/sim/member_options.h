// member_options.h - what workers and servers of a simulated job have in common.
#ifndef BYTEPS_TESTS_SIM_MEMBER_OPTIONS_H_
#define BYTEPS_TESTS_SIM_MEMBER_OPTIONS_H_

#include <cstddef>
#include <functional>
#include <string>

#include "core/control/control_client.h"
#include "core/link/endpoint.h"
#include "core/plugin/transport.h"
#include "tests/sim/job_options.h"
#include "tests/sim/node.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

// Data-plane links.
EndpointOptions LinkOptionsOf(const JobOptions& options);
// An endpoint on this node, that wakes it.
Transport OpenTransport(sim::SimFabric* fabric, const JobOptions& options, Node* node);
// Do servers read and write the memory of workers in this job?
bool InPlace(const JobOptions& options);
// One for peers on the same host: it copies between processes, and may map.
Transport OpenLocalTransport(sim::SimFabric* fabric, const JobOptions& options, Node* node);
// Its address, for Hello.
control::Lane LaneOf(Transport* transport);
// Random bytes from the seed.
std::function<std::string(size_t)> RandomBytesOf(sim::SimFabric* fabric);
// Everything but roles, places and lanes.
ControlClientOptions ClientOptionsOf(sim::SimFabric* fabric, const JobOptions& options, const std::string& node);

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_MEMBER_OPTIONS_H_
