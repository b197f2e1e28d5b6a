// plugin_entry.cc - the plugin's face: abi/transport.h on the outside, byteps::fabric::Transport inside.
//
// The plugin's name, a row of provider_table.h, is the macro BPS_FABRIC_PLUGIN: one source, several shared objects.
// What opens its transports is OpenTransport, or, in tests, the function BPS_FABRIC_OPEN of the header
// BPS_FABRIC_OPEN_HEADER.

#include <atomic>
#include <string>

#include "abi/byteps.h"
#include "abi/transport.h"
#include "transport_plugins/common/face.h"
#include "transport_plugins/libfabric/open_transport.h"
#include "transport_plugins/libfabric/provider_info.h"
#include "transport_plugins/libfabric/provider_table.h"
#include "transport_plugins/libfabric/transport.h"

#ifdef BPS_FABRIC_OPEN_HEADER
#include BPS_FABRIC_OPEN_HEADER
#else
#define BPS_FABRIC_OPEN byteps::fabric::OpenTransport
#endif

namespace byteps::fabric {
namespace {

using transports::Host;
using Face = transports::Face<Transport>;

// Given once at load and valid for the life of the process (abi/plugin.h); open() and probe() are not given it again.
std::atomic<const bps_plugin_host*> g_host{nullptr};

int32_t Probe(const void* config, bps_failure* failure) {
  const Host host(g_host.load(), config, nullptr);
  return transports::GuardWithReason(host, failure, [&host](std::string* reason) {
    return ProbeProvider(*FindProvider(BPS_FABRIC_PLUGIN), host, reason) ? BPS_OK : BPS_UNAVAILABLE;
  });
}

int32_t Open(const bps_transport_open_args* args, bps_transport** out, bps_failure* failure) {
  return Face::Open(g_host.load(), args, out, failure,
                    [](const Host& host, const bps_transport_open_args& known, std::string* reason) {
                      return BPS_FABRIC_OPEN(*FindProvider(BPS_FABRIC_PLUGIN), host, known, reason);
                    });
}

constexpr bps_transport_table kTable = Face::Table(Open);

}  // namespace
}  // namespace byteps::fabric

extern "C" BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* host,
                                                             const bps_transport_plugin** plugin) {
  using byteps::fabric::FindProvider;
  static const bps_transport_plugin kPlugin = {
      .struct_size = sizeof(bps_transport_plugin),
      .info = {.struct_size = sizeof(bps_plugin_info),
               .abi_minor = BPS_TRANSPORT_ABI_MINOR,
               .kind = "transport",
               .name = FindProvider(BPS_FABRIC_PLUGIN)->name,
               .version = "1.0",
               .description = FindProvider(BPS_FABRIC_PLUGIN)->description},
      .probe = byteps::fabric::Probe,
      .table = &byteps::fabric::kTable,
  };
  byteps::fabric::g_host = host;
  *plugin = &kPlugin;
  return BPS_OK;
}
