// open_transport.h - the transport of a provider: connected or datagrams, as provider_table.h says.
//
//     std::unique_ptr<Transport> transport = OpenTransport(*FindProvider("efa"), host, args, &reason);
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_OPEN_TRANSPORT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_OPEN_TRANSPORT_H_

#include <memory>
#include <string>

#include "transport_plugins/libfabric/provider_table.h"
#include "transport_plugins/libfabric/transport.h"

namespace byteps::fabric {

// nullptr, and the reason, if that is not possible here.
std::unique_ptr<Transport> OpenTransport(const Provider& provider, const transports::Host& host,
                                         const bps_transport_open_args& args, std::string* reason);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_OPEN_TRANSPORT_H_
