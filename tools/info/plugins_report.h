// plugins_report.h - which plugins there are, from where, which can be used here, and which the configuration takes.
//
//     PluginsReport report = ReportPlugins(config);
//     std::cout << report.text;
//     if (!report.usable) ...                      // what the configuration asks for cannot be used
//
// Loads every plugin that is found.
//
// Threads: one at a time.
#ifndef BYTEPS_TOOLS_INFO_PLUGINS_REPORT_H_
#define BYTEPS_TOOLS_INFO_PLUGINS_REPORT_H_

#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/plugin/plugin_registry.h"
#include "tools/info/plugin_facts.h"

namespace byteps {

struct ListedPlugin {
  PluginListing plugin;
  PluginFacts facts;
  bool hidden = false;  // another of that name is found first
};

struct PluginsReport {
  std::string text;
  bool usable = true;
  std::vector<ListedPlugin> all;
  std::vector<std::string> folders;       // where they were sought
  std::string transport, scheduler;       // what the configuration takes; "" where that cannot be used
  std::vector<std::string> errors;        // why
  std::vector<PluginListing> transports;  // each name once: the one that would be chosen
};

PluginsReport ReportPlugins(const Config& config);

// One line; "" if it can be used.
std::string WhyNotUsable(const PluginListing& plugin);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_PLUGINS_REPORT_H_
