// plugin_facts.h - what a plugin can do, beyond what its contract requires: for bps_info.
//
//     PluginFacts facts = FactsOf(&registry, listing);
//     facts.contract       // "1.1"
//     facts.abilities      // {"wait_fd", "cheap_reg", "messages of 65536 bytes"}
//
// Of a transport that can be used here one endpoint is opened, asked, and closed again; of a device plugin the driver,
// the devices and the library of collectives are the abilities.
//
// Threads: one at a time.
#ifndef BYTEPS_TOOLS_INFO_PLUGIN_FACTS_H_
#define BYTEPS_TOOLS_INFO_PLUGIN_FACTS_H_

#include <string>
#include <vector>

#include "core/plugin/plugin_registry.h"

namespace byteps {

struct PluginFacts {
  std::string contract;  // the version that it was written for; "" where it cannot be loaded
  std::vector<std::string> abilities;
};

PluginFacts FactsOf(PluginRegistry* registry, const PluginListing& plugin);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_PLUGIN_FACTS_H_
