#include "tools/conformance/plugin_under_test.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/plugin/plugin_check.h"
#include "core/plugin/plugin_file.h"
#include "core/plugin/plugin_host.h"

namespace byteps {
namespace {

PluginUnderTest& Instance() {
  static PluginUnderTest plugin;
  return plugin;
}

void Describe(const bps_plugin_info& info, PluginUnderTest* plugin) {
  plugin->name = info.name;
  plugin->version = info.version;
  plugin->description = info.description;
  plugin->minor = info.abi_minor;
}

// What the suite gives as configuration: the BYTEPS_ variables of the environment.
class EnvironmentConfig : public PluginConfig {
 public:
  const char* PluginValue(std::string_view name) const override { return std::getenv(std::string(name).c_str()); }
};

absl::Status LoadTransport(void* entry, PluginUnderTest* plugin) {
  plugin->transport = reinterpret_cast<bps_transport_plugin_fn>(entry);
  const bps_transport_plugin* found = nullptr;
  if (absl::Status fit = CheckTransportPlugin(plugin->transport, plugin->name, &found); !fit.ok()) return fit;
  Describe(found->info, plugin);
  const EnvironmentConfig config;
  bps_failure failure;
  const int32_t code = found->probe(&config, &failure);
  return code == BPS_OK ? absl::OkStatus() : FailureStatus(code, failure, "it cannot be used on this machine");
}

absl::Status LoadScheduler(void* entry, PluginUnderTest* plugin) {
  plugin->scheduler = reinterpret_cast<bps_scheduler_plugin_fn>(entry);
  const bps_scheduler_plugin* found = nullptr;
  if (absl::Status fit = CheckSchedulerPlugin(plugin->scheduler, plugin->name, &found); !fit.ok()) return fit;
  Describe(found->info, plugin);
  return absl::OkStatus();
}

absl::Status Load(PluginUnderTest* plugin) {
  const bool transport = plugin->kind == "transport";
  plugin->name = PluginNameOf(plugin->kind, plugin->path);
  if (plugin->name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a name of the form ", PluginFileName(plugin->kind, "<name>"), ": rename the file"));
  }
  if (!FileExists(plugin->path)) return absl::NotFoundError("no such file");
  absl::StatusOr<void*> entry = LoadPluginEntry(plugin->path, transport ? BPS_TRANSPORT_ENTRY : BPS_SCHEDULER_ENTRY);
  if (!entry.ok()) return entry.status();
  return transport ? LoadTransport(*entry, plugin) : LoadScheduler(*entry, plugin);
}

}  // namespace

absl::StatusOr<PluginUnderTest> LoadPlugin(const std::string& kind, const std::string& path) {
  PluginUnderTest plugin;
  plugin.kind = kind;
  // A name without '/' would be searched for in LD_LIBRARY_PATH.
  plugin.path = path.find('/') == std::string::npos ? "./" + path : path;
  const absl::Status loaded = Load(&plugin);
  if (loaded.ok()) return plugin;
  return absl::Status(loaded.code(), absl::StrCat(plugin.path, ": ", loaded.message()));
}

void SetPluginUnderTest(const PluginUnderTest& plugin) { Instance() = plugin; }
const PluginUnderTest& GetPluginUnderTest() { return Instance(); }

}  // namespace byteps
