// provider_info.h - what libfabric offers of a provider here, and where.
//
//     InfoPtr info = FindInfo(provider, host, local_host, device, &reason);
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_INFO_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_INFO_H_

#include <rdma/fabric.h>

#include <string>

#include "transport_plugins/common/host.h"
#include "transport_plugins/libfabric/fid.h"
#include "transport_plugins/libfabric/provider_table.h"

namespace byteps::fabric {

// Whether the provider, its device and what it needs are there at all; else why not.
bool ProbeProvider(const Provider& provider, const transports::Host& host, std::string* reason);

// What to open. nullptr, and the reason, if there is nothing. `local_host` and `device` (an interface, or a domain
// where the provider's addresses are not those of interfaces) may be NULL.
InfoPtr FindInfo(const Provider& provider, const transports::Host& host, const char* local_host, const char* device,
                 std::string* reason);

// For people.
std::string PrintAddress(const fi_info& info, const void* address);
std::string DescribeInfo(const fi_info& info);
std::string FabricVersion();

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_INFO_H_
