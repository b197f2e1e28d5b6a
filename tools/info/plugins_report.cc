#include "tools/info/plugins_report.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/log.h"
#include "core/control/host_identity.h"
#include "core/transports/transport_choice.h"
#include "tools/info/plugin_trial.h"

namespace byteps {
namespace {

// The address that a member of the job would have; "" where there is no coordinator to say.
absl::StatusOr<std::string> LocalHost(const Config& config) {
  const std::string& coordinator = config.GetString("DMLC_PS_ROOT_URI");
  const OwnAddressOptions own{.node_host = config.GetString("DMLC_NODE_HOST"),
                              .interface = config.GetString("DMLC_INTERFACE"),
                              .coordinator = coordinator.empty() ? "127.0.0.1" : coordinator,
                              .port = static_cast<int>(config.GetInt("DMLC_PS_ROOT_PORT"))};
  if (coordinator.empty() && own.node_host.empty() && own.interface.empty()) return "";
  return OwnAddress(own);
}

void Collect(void* lines, int32_t, const char*, int32_t, const char* message) {
  static_cast<std::vector<std::string>*>(lines)->emplace_back(message);
}

// A plugin that crashes is a line of the report, not its end.
PluginRegistry::Trial TrialOf(const Config& config) {
  return [&config](const std::string& kind, const std::string& path) { return TryPlugin(config, kind, path); };
}

// Two spaces before every line.
std::string Indented(std::string text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 3)) text.insert(at + 1, "    ");
  return absl::StrCat("  ", text, "\n");
}

// What the configuration makes of the transports, and why.
absl::Status Choose(const Config& config, std::string* text, std::string* chosen) {
  const absl::StatusOr<std::string> host = LocalHost(config);
  if (!host.ok()) return host.status();  // all roles fail of it, or wait
  std::vector<std::string> lines;
  LogOptions options = config.GetLogOptions();
  options.level = LogLevel::kInfo;
  options.verbose = 0;
  options.sink = Collect;
  options.user = &lines;
  const Logger log(options);
  PluginRegistry registry(config, log);
  registry.UseTrial(TrialOf(config));
  const absl::StatusOr<std::string> name = ChooseTransport(&registry, config, log, *host);
  for (const std::string& line : lines) *text += Indented(line);
  if (!name.ok()) return name.status();
  if (lines.empty())
    *text += Indented(
        absl::StrCat("transport ", *name, ", as BYTEPS_TRANSPORT=", config.GetString("BYTEPS_TRANSPORT"), " says"));
  absl::Status usable = registry.FindTransport(*name).status();
  // Whether it opens at the address that was named only a trial can tell.
  if (usable.ok() && !host->empty()) usable = registry.OpenTransport(*name, *host).status();
  if (usable.ok()) *chosen = *name;
  return usable;
}

std::string Describe(const PluginListing& plugin, const PluginFacts& facts, bool hidden) {
  std::string text = absl::StrCat("  ", plugin.kind, " ", plugin.name, " ", plugin.version, "  ", plugin.path, "\n");
  if (!plugin.usable.ok()) {
    absl::StrAppend(&text, "      not usable: ", WhyNotUsable(plugin), "\n");
    // What it can do only an open transport or device tells.
    if (!facts.contract.empty()) absl::StrAppend(&text, "      contract ", facts.contract, "\n");
    return text;
  }
  absl::StrAppend(&text, "      ", plugin.description,
                  hidden ? " (not this one: another of that name is found first)" : "", "\n");
  absl::StrAppend(&text, "      contract ", facts.contract, facts.abilities.empty() ? "" : ": ",
                  absl::StrJoin(facts.abilities, ", "), "\n");
  return text;
}

}  // namespace

std::string WhyNotUsable(const PluginListing& plugin) {
  std::string text(plugin.usable.message());
  std::replace(text.begin(), text.end(), '\n', ' ');
  constexpr std::string_view kSubject = "it cannot be used here: ";
  if (text.rfind(kSubject, 0) == 0) text.erase(0, kSubject.size());
  return text;
}

PluginsReport ReportPlugins(const Config& config) {
  PluginsReport report;
  const Logger log(config.GetLogOptions());
  PluginRegistry registry(config, log);
  registry.UseTrial(TrialOf(config));
  // To know what a transport can do it is opened; what it says then would stand in the middle of the report.
  LogOptions silent;
  silent.level = LogLevel::kFatal;
  const Logger no_log(silent);
  PluginRegistry for_facts(config, no_log);
  std::set<std::string> seen;
  for (const PluginListing& plugin : registry.List()) {
    const bool first = seen.insert(absl::StrCat(plugin.kind, " ", plugin.name)).second;
    const PluginFacts facts = plugin.usable.ok() ? FactsOf(&for_facts, plugin) : PluginFacts{plugin.contract, {}};
    report.text += Describe(plugin, facts, !first);
    report.all.push_back({plugin, facts, !first});
    if (first && plugin.kind == "transport") report.transports.push_back(plugin);
  }
  for (const auto& folder : registry.folders()) report.folders.emplace_back(folder);
  absl::StrAppend(&report.text, "  searched: ", absl::StrJoin(report.folders, " "), "\n");
  const absl::Status transport = Choose(config, &report.text, &report.transport);
  const absl::StatusOr<const bps_scheduler_plugin*> scheduler =
      registry.FindScheduler(config.GetString("BYTEPS_SCHEDULER"));
  if (scheduler.ok()) {
    report.scheduler = (*scheduler)->info.name;
    absl::StrAppend(&report.text, "  scheduler ", (*scheduler)->info.name,
                    ", as BYTEPS_SCHEDULER=", config.GetString("BYTEPS_SCHEDULER"), " says\n");
  }
  for (const absl::Status& status : {transport, scheduler.status()}) {
    if (status.ok()) continue;
    report.errors.emplace_back(status.message());
    report.text += Indented(report.errors.back());
    report.usable = false;
  }
  return report;
}

}  // namespace byteps
