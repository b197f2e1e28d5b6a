// plugin_entry.cc - the plugin's face: abi/transport.h on the outside, byteps::shm::Transport inside.

#include <atomic>
#include <string>

#include "abi/byteps.h"
#include "abi/transport.h"
#include "transport_plugins/common/face.h"
#include "transport_plugins/shm/host.h"
#include "transport_plugins/shm/transport.h"

namespace byteps::shm {
namespace {

using Face = transports::Face<Transport, Region>;

// Given once at load and valid for the life of the process (abi/plugin.h); open() and probe() are not given it again.
std::atomic<const bps_plugin_host*> g_host{nullptr};

int32_t Probe(const void* config, bps_failure* failure) {
  return transports::GuardWithReason(Host(g_host.load(), config, nullptr), failure, [](std::string* reason) {
    return Transport::Probe(reason) ? BPS_OK : BPS_UNAVAILABLE;
  });
}

int32_t Open(const bps_transport_open_args* args, bps_transport** out, bps_failure* failure) {
  return Face::Open(g_host.load(), args, out, failure, Transport::Open);
}

constexpr bps_transport_table kTable = Face::Table(Open);

constexpr bps_transport_plugin kPlugin = {
    .struct_size = sizeof(bps_transport_plugin),
    .info = {.struct_size = sizeof(bps_plugin_info),
             .abi_minor = BPS_TRANSPORT_ABI_MINOR,
             .kind = "transport",
             .name = "shm",
             .version = "1.0",
             .description = "shared memory between the processes of one host"},
    .probe = Probe,
    .table = &kTable,
};

}  // namespace
}  // namespace byteps::shm

extern "C" BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* host,
                                                             const bps_transport_plugin** plugin) {
  byteps::shm::g_host = host;
  *plugin = &byteps::shm::kPlugin;
  return BPS_OK;
}
