// plugin_registry.h - finds plugins, checks them, and opens instances of them.
//
//     PluginRegistry registry(config, log);
//     absl::StatusOr<Transport> transport = registry.OpenTransport("tcp", local_host);
//     absl::StatusOr<Scheduler> scheduler = registry.CreateScheduler("/opt/mine/libbyteps_scheduler_mine.so",
//     direction);
//
// A name is looked for as libbyteps_<kind>_<name>.so in the folders of BYTEPS_PLUGIN_PATH, then beside the library
// (see folders()), then among the builtin ones; a value with a '/' is the path of a file. Nothing else is searched: not
// LD_LIBRARY_PATH, not the current folder.
//
// What is loaded is checked before it is used: the entry comes from the file itself and not from one of its
// dependencies, kind and name are those of the file's name, versions fit, required functions are there, nothing throws;
// a transport or a device plugin is asked whether what it needs is present. What fails is an error with four facts:
// what was asked for and by which variable, each path that was tried with what happened there, what was found and what
// was expected, and what to do. The first file that exists counts: a broken one is not passed over for another further
// down the path.
//
// Threads:   one at a time; registries are independent of each other.
// Ownership: plugins are never unloaded, so descriptors are valid for the life of the process. Configuration and logger
//            must outlive the registry and what it opened.
// Errors:    NOT_FOUND: no such plugin. FAILED_PRECONDITION: found, but unusable. Else the plugin's own code.
#ifndef BYTEPS_CORE_PLUGIN_PLUGIN_REGISTRY_H_
#define BYTEPS_CORE_PLUGIN_PLUGIN_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abi/device.h"
#include "abi/scheduler.h"
#include "abi/transport.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/plugin_host.h"
#include "core/plugin/scheduler.h"
#include "core/plugin/transport.h"

namespace byteps {

// A plugin that could be chosen, for tools.
struct PluginListing {
  std::string kind;
  std::string name;
  std::string path;  // "builtin" for those linked in
  std::string version;
  std::string contract;  // the version of it that the plugin was written for, as "1.1"; this and those around it "" for
                         // what does not load
  std::string description;
  absl::Status usable;  // else why not
};

class PluginRegistry {
 public:
  PluginRegistry(const PluginConfig& config, const Logger& log);
  PluginRegistry(const PluginRegistry&) = delete;
  PluginRegistry& operator=(const PluginRegistry&) = delete;

  // Makes a plugin that is linked into this program known, by its entry; it is checked like a loaded one.
  void RegisterBuiltin(bps_transport_plugin_fn entry) { builtin_transports_.push_back(entry); }
  void RegisterBuiltin(bps_scheduler_plugin_fn entry) { builtin_schedulers_.push_back(entry); }
  void RegisterBuiltin(bps_device_plugin_fn entry) { builtin_devices_.push_back(entry); }

  // For tools that look at plugins of unknown quality: what is not OK is not loaded here.
  using Trial = std::function<absl::Status(const std::string& kind, const std::string& path)>;
  void UseTrial(Trial trial) { trial_ = std::move(trial); }

  // What is opened from now on tells `calls`, which outlives it, which function of the plugin runs.
  void Watch(PluginCalls* calls) { calls_ = calls; }

  // The checked descriptor of a plugin. The scheduler "auto" is the first of credit, priority and fifo that is there.
  absl::StatusOr<const bps_transport_plugin*> FindTransport(std::string_view wanted);
  absl::StatusOr<const bps_scheduler_plugin*> FindScheduler(std::string_view wanted);
  absl::StatusOr<const bps_device_plugin*> FindDevice(std::string_view wanted);

  // Why a transport cannot be used here, in one line; "" if its plugin is there and its probe is content.
  // kNotInstalled: there is none in any of the folders.
  static constexpr char kNotInstalled[] = "it is not installed";
  std::string WhyNotTransport(std::string_view wanted);

  // An endpoint of it. `local_host`: numeric address to bind, "": the plugin chooses; `device` likewise.
  absl::StatusOr<Transport> OpenTransport(std::string_view wanted, const std::string& local_host,
                                          const std::string& device = "", uint64_t job_key = 0);
  // An instance of it for BPS_DIRECTION_*.
  absl::StatusOr<Scheduler> CreateScheduler(std::string_view wanted, int32_t direction);

  // What plugins are told.
  const PluginConfig& config() const { return config_; }

  // Where names are looked for, in this order.
  const std::vector<std::string>& folders() const { return folders_; }

  // All plugins there are, usable or not, those that would be chosen first; loads them.
  std::vector<PluginListing> List();

 private:
  const PluginConfig& config_;
  const Logger& log_;
  PluginCalls* calls_ = nullptr;
  Trial trial_;                    // before a file is loaded first; may be empty
  bool told_of_fallback_ = false;  // that credit is missing; once is enough
  std::vector<std::string> folders_;
  std::vector<bps_transport_plugin_fn> builtin_transports_;
  std::vector<bps_scheduler_plugin_fn> builtin_schedulers_;
  std::vector<bps_device_plugin_fn> builtin_devices_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_PLUGIN_REGISTRY_H_
