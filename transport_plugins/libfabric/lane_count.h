// lane_count.h - over how many lanes a transport of connections moves its large writes, and which are large.
//
//     size_t lanes = LaneCount(host, endpoint->info());       // BYTEPS_TCP_LANES, or what cores and link are good for
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LANE_COUNT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LANE_COUNT_H_

#include <rdma/fabric.h>

#include <cstddef>
#include <cstdint>

#include "transport_plugins/common/host.h"

namespace byteps::fabric {

// At least 1. 1 where the provider chooses the keys of memory: each lane must have the same.
size_t LaneCount(const transports::Host& host, const fi_info& info);

// Bytes of a write that is worth a lane: BYTEPS_TCP_LANE_BYTES.
size_t LeastForLanes(const transports::Host& host);

// The rule, where nothing was said. `megabits`: of the link, 0 if it is not known.
size_t LanesFor(size_t cores, uint64_t megabits);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_LANE_COUNT_H_
