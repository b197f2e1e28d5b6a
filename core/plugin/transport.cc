#include "core/plugin/transport.h"

#include <utility>

#include "core/plugin/plugin_transport.h"

namespace byteps {

Transport::Transport(std::unique_ptr<TransportVerbs> verbs, std::string name)
    : verbs_(std::move(verbs)), caps_(&verbs_->caps()), name_(std::move(name)) {}

absl::StatusOr<Transport> Transport::Open(const bps_transport_plugin& plugin, const bps_transport_open_args& args,
                                          PluginCalls* calls) {
  absl::StatusOr<std::unique_ptr<PluginTransport>> transport = PluginTransport::Open(plugin, args, calls);
  if (!transport.ok()) return transport.status();
  return Transport(*std::move(transport), plugin.info.name);
}

Transport Transport::Adopt(const bps_transport_table* table, bps_transport* handle, std::string name) {
  return Transport(std::make_unique<PluginTransport>(table, handle), std::move(name));
}

}  // namespace byteps
