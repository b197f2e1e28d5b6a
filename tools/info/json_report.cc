#include "tools/info/json_report.h"

#include <cstddef>
#include <utility>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "abi/transport.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/version.h"
#include "core/wire/wire.h"
#include "tools/info/host_report.h"
#include "tools/info/installation.h"
#include "tools/info/json.h"
#include "tools/info/links_report.h"

namespace byteps {
namespace {

using Members = std::vector<std::pair<std::string, std::string>>;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

std::string PathOrNull(const absl::StatusOr<std::string>& path) { return path.ok() ? JsonString(*path) : "null"; }

std::string Plugin(const ListedPlugin& listed) {
  const PluginListing& plugin = listed.plugin;
  return JsonObject({{"kind", JsonString(plugin.kind)},
                     {"name", JsonString(plugin.name)},
                     {"version", JsonString(plugin.version)},
                     {"path", JsonString(plugin.path)},
                     {"description", JsonString(plugin.description)},
                     {"contract", JsonString(listed.facts.contract)},
                     {"abilities", JsonStrings(listed.facts.abilities)},
                     {"usable", JsonBool(plugin.usable.ok())},
                     {"why_not", plugin.usable.ok() ? "null" : JsonString(WhyNotUsable(plugin))},
                     {"hidden", JsonBool(listed.hidden)}});
}

std::string Plugins(const PluginsReport& plugins) {
  std::vector<std::string> values;
  for (const ListedPlugin& listed : plugins.all) values.push_back(Plugin(listed));
  return JsonArray(values);
}

// The lines of a report for people, each a text.
std::string Lines(const std::string& report) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(report, '\n', absl::SkipWhitespace())) {
    lines.emplace_back(absl::StripAsciiWhitespace(line));
  }
  return JsonStrings(lines);
}

std::string HostObject() {
  Members members;
  for (const HostFact& fact : HostFacts("", LockedMemoryLimit())) {
    members.emplace_back(fact.subject, JsonString(fact.text));
  }
  return JsonObject(members);
}

std::string Variables(const Config& config, bool all) {
  std::vector<std::string> values;
  for (size_t i = 0; i < kKnobCount; ++i) {
    const Knob& knob = kKnobs[i];
    if (!all && knob.status != KnobStatus::kActive && config.SourceAt(i) == ConfigSource::kDefault) continue;
    values.push_back(JsonObject({{"name", JsonString(knob.name)},
                                 {"value", JsonStringOrNull(config.ShownAt(i))},
                                 {"source", JsonString(ConfigSourceName(config.SourceAt(i)))},
                                 {"acted_on", JsonBool(knob.status == KnobStatus::kActive)}}));
  }
  return JsonArray(values);
}

std::string Check(const std::vector<CheckResult>& results) {
  std::vector<std::string> values;
  for (const CheckResult& result : results) {
    Members members = {{"name", JsonString(result.name)}, {"result", JsonString(CheckOutcomeName(result.outcome))}};
    if (result.outcome == CheckOutcome::kOk) {
      members.emplace_back("small_us", absl::StrCat(result.times.small_us));
      members.emplace_back("large_us", absl::StrCat(result.times.large_us));
    } else {
      members.emplace_back("why", JsonString(result.why));
    }
    values.push_back(JsonObject(members));
  }
  return JsonArray(values);
}

}  // namespace

std::string JsonReport(const Config& config, const PluginsReport& plugins, const absl::StatusOr<std::string>& groups,
                       const JsonReportOptions& options) {
  const absl::StatusOr<std::string> library = FindLibrary(config);
  Members members = {
      {"release", JsonString(kRelease)},
      {"c_abi", JsonString(absl::StrCat(BPS_ABI_MAJOR, ".", BPS_ABI_MINOR))},
      {"transport_abi", JsonString(absl::StrCat("1.", BPS_TRANSPORT_ABI_MINOR))},
      {"scheduler_abi", JsonString(absl::StrCat("1.", BPS_SCHEDULER_ABI_MINOR))},
      {"wire_protocol", absl::StrCat(wire::kVersion)},
      {"library", PathOrNull(library)},
      {"library_says", library.ok() ? JsonString(LibraryReport(*library)) : JsonString(Text(library.status()))},
      {"server", PathOrNull(FindServer(config))},
      {"plugins", Plugins(plugins)},
      {"searched", JsonStrings(plugins.folders)},
      {"transport", JsonStringOrNull(plugins.transport)},
      {"scheduler", JsonStringOrNull(plugins.scheduler)},
      {"errors", JsonStrings(plugins.errors)},
      {"links", Lines(LinksReport("", Interfaces()))},
      {"host", HostObject()},
      {"reduction", Lines(groups.ok() ? *groups : Text(groups.status()))},
      {"configuration", Variables(config, options.all)},
      {"warnings", JsonStrings(config.warnings())},
  };
  if (options.check != nullptr) members.emplace_back("check", Check(*options.check));
  members.emplace_back("usable", JsonBool(options.usable));
  return JsonObject(members);
}

}  // namespace byteps
