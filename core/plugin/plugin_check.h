// plugin_check.h - is what a plugin's entry answered a usable descriptor?
//
//     absl::Status fit = CheckTransportPlugin(entry, "tcp", &plugin);      // calls the entry
//
// Checks code, sizes, minor version, kind, name and required functions; catches what the entry throws. The errors name
// what was found and what was expected, not the path.
#ifndef BYTEPS_CORE_PLUGIN_PLUGIN_CHECK_H_
#define BYTEPS_CORE_PLUGIN_PLUGIN_CHECK_H_

#include <string_view>

#include "abi/device.h"
#include "abi/scheduler.h"
#include "abi/transport.h"
#include "absl/status/status.h"

namespace byteps {

// `name`: what the plugin must call itself; "": anything.
absl::Status CheckTransportPlugin(bps_transport_plugin_fn entry, std::string_view name,
                                  const bps_transport_plugin** plugin);
absl::Status CheckSchedulerPlugin(bps_scheduler_plugin_fn entry, std::string_view name,
                                  const bps_scheduler_plugin** plugin);
// What a device plugin has for several processes; nullptr: nothing.
const bps_device_collectives* DeviceCollectives(const bps_device_plugin& plugin);
absl::Status CheckDevicePlugin(bps_device_plugin_fn entry, std::string_view name, const bps_device_plugin** plugin);

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_PLUGIN_CHECK_H_
