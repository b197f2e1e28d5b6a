#include "core/plugin/plugin_registry.h"

#include <dirent.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plugin/crash_witness.h"
#include "core/plugin/plugin_check.h"
#include "core/plugin/plugin_file.h"

namespace byteps {
namespace {

// What differs between the kinds.
template <typename Plugin>
struct Kind;
template <>
struct Kind<bps_transport_plugin> {
  static constexpr char kName[] = "transport";
  static constexpr char kVariable[] = "BYTEPS_TRANSPORT";
  static constexpr char kEntry[] = BPS_TRANSPORT_ENTRY;
  using Entry = bps_transport_plugin_fn;
  static constexpr auto kCheck = CheckTransportPlugin;
};
template <>
struct Kind<bps_scheduler_plugin> {
  static constexpr char kName[] = "scheduler";
  static constexpr char kVariable[] = "BYTEPS_SCHEDULER";
  static constexpr char kEntry[] = BPS_SCHEDULER_ENTRY;
  using Entry = bps_scheduler_plugin_fn;
  static constexpr auto kCheck = CheckSchedulerPlugin;
};
template <>
struct Kind<bps_device_plugin> {
  static constexpr char kName[] = "device";
  static constexpr char kVariable[] = "BYTEPS_DEVICE";
  static constexpr char kEntry[] = BPS_DEVICE_ENTRY;
  using Entry = bps_device_plugin_fn;
  static constexpr auto kCheck = CheckDevicePlugin;
};

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    if (end != 0) parts.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return parts;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Names of the files in a folder, sorted; none if it cannot be read.
std::vector<std::string> FilesIn(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  std::vector<std::string> names;
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory.get())) names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

// Where a name comes from, for people.
std::string Origin(const PluginConfig& config, const char* variable) {
  const char* value = config.PluginValue(variable);
  const bool chosen = value != nullptr && absl::EqualsIgnoreCase(value, "auto");
  return chosen ? absl::StrCat("by ", variable, "=auto") : absl::StrCat("from ", variable);
}

// What stands around the loading of a file.
struct Loading {
  const PluginConfig& config;
  const Logger& log;
  const PluginRegistry::Trial& trial;
};

// Loads the plugin at `path` and checks it.
template <typename Plugin>
absl::Status LoadFile(const std::string& path, const std::string& name, const Loading& loading, const Plugin** plugin) {
  const bool first = !PluginLoaded(path);
  if (first) {
    BPS_LOG(loading.log, kInfo) << "loading the " << Kind<Plugin>::kName << " plugin " << path;
    if (loading.trial) {
      if (absl::Status tried = loading.trial(Kind<Plugin>::kName, path); !tried.ok()) return tried;
    }
  }
  // A crash in its initialisers or its entry leaves no other trace of it.
  const CrashWitness witness(absl::StrCat("loading the ", Kind<Plugin>::kName, " plugin ", path));
  absl::StatusOr<void*> entry = LoadPluginEntry(path, Kind<Plugin>::kEntry);
  if (!entry.ok()) return entry.status();
  const absl::Status usable =
      Kind<Plugin>::kCheck(reinterpret_cast<typename Kind<Plugin>::Entry>(*entry), name, plugin);
  if (usable.ok() && first) {
    BPS_LOG(loading.log, kDebug) << Kind<Plugin>::kName << " plugin " << (*plugin)->info.name << " "
                                 << ((*plugin)->info.version == nullptr ? "" : (*plugin)->info.version) << " is loaded";
  }
  return usable;
}

// Names of the plugins of a kind that could be chosen.
template <typename Plugin>
std::set<std::string> KnownNames(const std::vector<std::string>& folders,
                                 const std::vector<typename Kind<Plugin>::Entry>& builtins) {
  std::set<std::string> names;
  for (const std::string& folder : folders) {
    for (const std::string& file : FilesIn(folder)) {
      std::string name = PluginNameOf(Kind<Plugin>::kName, file);
      if (!name.empty()) names.insert(std::move(name));
    }
  }
  for (const auto entry : builtins) {
    const Plugin* plugin = nullptr;
    if (Kind<Plugin>::kCheck(entry, "", &plugin).ok()) names.insert(plugin->info.name);
  }
  return names;
}

// Looks for one plugin, and keeps what the error will say.
template <typename Plugin>
class Search {
 public:
  Search(std::string_view wanted, const Loading& loading, const std::vector<std::string>& folders,
         const std::vector<typename Kind<Plugin>::Entry>& builtins)
      : wanted_(wanted), loading_(loading), folders_(folders), builtins_(builtins) {}

  absl::StatusOr<const Plugin*> Run() {
    if (wanted_.find('/') != std::string::npos) return AtPath();
    const std::string name = Lower(wanted_);
    for (const std::string& folder : folders_) {
      const std::string path = folder + "/" + PluginFileName(Kind<Plugin>::kName, name);
      if (FileExists(path)) return Load(path, name);
      Tried(path, "no such file");
    }
    for (const auto entry : builtins_) {
      const Plugin* plugin = nullptr;
      const absl::Status status = Kind<Plugin>::kCheck(entry, "", &plugin);
      if (status.ok() && name == plugin->info.name) return plugin;
      if (!status.ok()) Tried("a builtin plugin", std::string(status.message()));
    }
    return Error(absl::StatusCode::kNotFound, "could not be found",
                 "Correct the name, or name the plugin's folder in BYTEPS_PLUGIN_PATH");
  }

 private:
  absl::StatusOr<const Plugin*> AtPath() {
    const std::string name = PluginNameOf(Kind<Plugin>::kName, wanted_);
    const std::string pattern = PluginFileName(Kind<Plugin>::kName, "<name>");
    if (name.empty()) {
      Tried(wanted_, absl::StrCat("not a name of the form ", pattern));
      return Error(absl::StatusCode::kNotFound, "cannot be a plugin",
                   "Give the path of a plugin, or a name without '/'");
    }
    if (FileExists(wanted_)) return Load(wanted_, name);
    Tried(wanted_, "no such file");
    return Error(absl::StatusCode::kNotFound, "could not be found", "Correct the path, or give a name without '/'");
  }

  absl::StatusOr<const Plugin*> Load(const std::string& path, const std::string& name) {
    const Plugin* plugin = nullptr;
    const absl::Status status = LoadFile(path, name, loading_, &plugin);
    if (status.ok()) return plugin;
    Tried(path, std::string(status.message()));
    // (Without a descriptor no file can be read.)
    const char* advice = absl::IsResourceExhausted(status) ? "The file itself may be whole"
                                                           : "Repair or remove that file, or choose another plugin";
    return Error(status.code(), "could not be loaded", advice);
  }

  void Tried(const std::string& path, const std::string& result) { tried_ += absl::StrCat("\n  ", path, ": ", result); }

  absl::Status Error(absl::StatusCode code, const char* what, const char* advice) {
    std::string known;
    for (const std::string& name : KnownNames<Plugin>(folders_, builtins_)) {
      known += known.empty() ? name : absl::StrCat(", ", name);
    }
    return absl::Status(code, absl::StrCat(Kind<Plugin>::kName, " \"", wanted_, "\" (",
                                           Origin(loading_.config, Kind<Plugin>::kVariable), ") ", what, tried_,
                                           "\nKnown here: ", known.empty() ? "none" : known, ". ", advice, "."));
  }

  const std::string wanted_;
  const Loading loading_;
  const std::vector<std::string>& folders_;
  const std::vector<typename Kind<Plugin>::Entry>& builtins_;
  std::string tried_;
};

// Asks a plugin whether what it needs is here.
template <typename Plugin>
absl::Status Probe(const Plugin& plugin, const PluginConfig& config) {
  bps_failure failure;
  int32_t code = BPS_OK;
  try {
    code = plugin.probe(&config, &failure);
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(absl::StrCat("its probe threw an exception: ", error.what()));
  } catch (...) {
    return absl::FailedPreconditionError("its probe threw an exception");
  }
  if (code == BPS_OK) return absl::OkStatus();
  return FailureStatus(code, failure, "it cannot be used here");
}

// What a tool shows of one plugin.
template <typename Plugin>
PluginListing Describe(const std::string& path, const std::string& name, const absl::Status& loaded,
                       const Plugin* plugin, const PluginConfig& config) {
  PluginListing listing;
  listing.kind = Kind<Plugin>::kName;
  listing.name = name;
  listing.path = path;
  listing.usable = loaded;
  if (!loaded.ok()) return listing;
  listing.name = plugin->info.name;
  listing.version = plugin->info.version;
  listing.contract = absl::StrCat("1.", plugin->info.abi_minor);
  listing.description = plugin->info.description;
  if constexpr (!std::is_same_v<Plugin, bps_scheduler_plugin>) listing.usable = Probe(*plugin, config);
  return listing;
}

template <typename Plugin>
void ListKind(const std::vector<std::string>& folders, const std::vector<typename Kind<Plugin>::Entry>& builtins,
              const Loading& loading, std::vector<PluginListing>* listings) {
  std::set<std::string> seen;
  for (const std::string& folder : folders) {
    for (const std::string& file : FilesIn(folder)) {
      const std::string name = PluginNameOf(Kind<Plugin>::kName, file);
      const std::string path = absl::StrCat(folder, "/", file);
      if (name.empty() || !seen.insert(path).second) continue;
      const Plugin* plugin = nullptr;
      const absl::Status loaded = LoadFile(path, name, loading, &plugin);
      listings->push_back(Describe(path, name, loaded, plugin, loading.config));
    }
  }
  for (const auto entry : builtins) {
    const Plugin* plugin = nullptr;
    const absl::Status loaded = Kind<Plugin>::kCheck(entry, "", &plugin);
    listings->push_back(Describe("builtin", "", loaded, plugin, loading.config));
  }
}

}  // namespace

PluginRegistry::PluginRegistry(const PluginConfig& config, const Logger& log) : config_(config), log_(log) {
  const char* path = config.PluginValue("BYTEPS_PLUGIN_PATH");
  if (path != nullptr) folders_ = Split(path, ':');
  // A relative folder needs a '/': dlopen searches for a name without one.
  for (std::string& folder : folders_) {
    if (folder[0] != '/') folder.insert(0, "./");
  }
  const std::string own = OwnFolder();
  if (!own.empty()) {
    const std::string prefix = own.substr(0, own.rfind('/'));
    folders_.push_back(own + "/byteps/plugins");         // of an installed library
    folders_.push_back(prefix + "/lib/byteps/plugins");  // of a program in bin/, with the library in lib/
    folders_.push_back(own);                             // all in one folder
  }
  // A folder that is named twice, or both named and the library's own, is searched once.
  std::vector<std::string> once;
  for (std::string& folder : folders_) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (std::find(once.begin(), once.end(), folder) == once.end()) once.push_back(std::move(folder));
  }
  folders_ = std::move(once);
}

absl::StatusOr<const bps_transport_plugin*> PluginRegistry::FindTransport(std::string_view wanted) {
  absl::StatusOr<const bps_transport_plugin*> plugin =
      Search<bps_transport_plugin>(wanted, {config_, log_, trial_}, folders_, builtin_transports_).Run();
  if (!plugin.ok()) return plugin;
  const absl::Status here = Probe(**plugin, config_);
  if (here.ok()) return plugin;
  return absl::Status(here.code(),
                      absl::StrCat("transport \"", std::string(wanted), "\" (", Origin(config_, "BYTEPS_TRANSPORT"),
                                   "): ", here.message(), ". BYTEPS_TRANSPORT=auto takes the best there is"));
}

std::string PluginRegistry::WhyNotTransport(std::string_view wanted) {
  absl::StatusOr<const bps_transport_plugin*> plugin =
      Search<bps_transport_plugin>(wanted, {config_, log_, trial_}, folders_, builtin_transports_).Run();
  if (plugin.status().code() == absl::StatusCode::kNotFound) return kNotInstalled;
  if (!plugin.ok()) {
    std::string text(plugin.status().message());
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
  const absl::Status here = Probe(**plugin, config_);
  if (here.ok()) return "";
  std::string_view text(here.message().data(), here.message().size());
  constexpr std::string_view kSubject = "it cannot be used here: ";
  if (text.substr(0, kSubject.size()) == kSubject) text.remove_prefix(kSubject.size());
  return std::string(text);
}

absl::StatusOr<const bps_scheduler_plugin*> PluginRegistry::FindScheduler(std::string_view wanted) {
  if (absl::AsciiStrToLower(absl::string_view(wanted.data(), wanted.size())) != "auto") {
    return Search<bps_scheduler_plugin>(wanted, {config_, log_, trial_}, folders_, builtin_schedulers_).Run();
  }
  absl::Status none;
  for (const char* name : {"credit", "priority", "fifo"}) {
    auto plugin = Search<bps_scheduler_plugin>(name, {config_, log_, trial_}, folders_, builtin_schedulers_).Run();
    // One that is there and broken is not passed over.
    if (plugin.status().code() != absl::StatusCode::kNotFound) {
      if (!none.ok() && !std::exchange(told_of_fallback_, true)) {
        const absl::string_view sought = none.message();
        BPS_LOG(log_, kWarning) << "BYTEPS_SCHEDULER=auto takes " << name
                                << ", because credit, the default, was not found: "
                                << std::string_view(sought.data(), sought.size());
      }
      return plugin;
    }
    none.Update(plugin.status());
  }
  return Annotate(none, "BYTEPS_SCHEDULER=auto: neither credit nor priority nor fifo is installed");
}

absl::StatusOr<const bps_device_plugin*> PluginRegistry::FindDevice(std::string_view wanted) {
  absl::StatusOr<const bps_device_plugin*> plugin =
      Search<bps_device_plugin>(wanted, {config_, log_, trial_}, folders_, builtin_devices_).Run();
  if (!plugin.ok()) return plugin;
  const absl::Status here = Probe(**plugin, config_);
  if (here.ok()) return plugin;
  return absl::Status(here.code(), absl::StrCat("device \"", std::string(wanted), "\" (",
                                                Origin(config_, "BYTEPS_DEVICE"), "): ", here.message()));
}

absl::StatusOr<Transport> PluginRegistry::OpenTransport(std::string_view wanted, const std::string& local_host,
                                                        const std::string& device, uint64_t job_key) {
  absl::StatusOr<const bps_transport_plugin*> plugin = FindTransport(wanted);
  if (!plugin.ok()) return plugin.status();
  bps_transport_open_args args = {};
  args.struct_size = sizeof(args);
  args.config = &config_;
  args.log = const_cast<Logger*>(&log_);
  args.local_host = local_host.empty() ? nullptr : local_host.c_str();
  args.device = device.empty() ? nullptr : device.c_str();
  args.job_key = job_key;
  return Transport::Open(**plugin, args, calls_);
}

absl::StatusOr<Scheduler> PluginRegistry::CreateScheduler(std::string_view wanted, int32_t direction) {
  absl::StatusOr<const bps_scheduler_plugin*> plugin = FindScheduler(wanted);
  if (!plugin.ok()) return plugin.status();
  absl::StatusOr<Scheduler> scheduler = Scheduler::Create(**plugin, direction, &config_, &log_);
  if (scheduler.ok()) scheduler->Watch(calls_);
  return scheduler;
}

std::vector<PluginListing> PluginRegistry::List() {
  std::vector<PluginListing> listings;
  ListKind<bps_transport_plugin>(folders_, builtin_transports_, {config_, log_, trial_}, &listings);
  ListKind<bps_scheduler_plugin>(folders_, builtin_schedulers_, {config_, log_, trial_}, &listings);
  ListKind<bps_device_plugin>(folders_, builtin_devices_, {config_, log_, trial_}, &listings);
  return listings;
}

}  // namespace byteps
