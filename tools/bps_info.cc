// bps_info - what is installed here and how it is configured.
//
//     bps_info               versions, plugins, and the configuration in force with the source of each value
//     bps_info --all         also the variables that this release does not act on
//     bps_info --markdown    docs/configuration.md, on standard output
//
// Exits with 0; with 1 if a plugin that is chosen cannot be used; with 2 if the configuration or the call is wrong.

#include <iostream>
#include <string>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "abi/transport.h"
#include "absl/status/status.h"
#include "core/config.h"
#include "core/config_format.h"
#include "core/log.h"
#include "core/plugin_registry.h"
#include "core/version.h"
#include "core/wire.h"

namespace byteps {
namespace {

constexpr char kHelp[] =
    "bps_info: what of BytePS is installed here and how it is configured\n\n"
    "  bps_info               versions, plugins, and the configuration in force with the source of each value\n"
    "  bps_info --all         also the variables that this release does not act on\n"
    "  bps_info --markdown    the page docs/configuration.md\n";

void PrintVersions() {
  std::cout << "BytePS " << kRelease << "\n"
            << "  C ABI " << BPS_ABI_MAJOR << "." << BPS_ABI_MINOR << ", transport plugins 1."
            << BPS_TRANSPORT_ABI_MINOR << ", scheduler plugins 1." << BPS_SCHEDULER_ABI_MINOR << ", wire protocol "
            << wire::kVersion << "\n";
}

// True if what the configuration chooses can be used.
bool PrintPlugins(const Config& config) {
  Logger log(config.GetLogOptions());
  PluginRegistry registry(config, log);
  std::cout << "\nPlugins\n";
  for (const PluginListing& plugin : registry.List()) {
    std::cout << "  " << plugin.kind << " " << plugin.name << " " << plugin.version << "  " << plugin.path << "\n";
    if (plugin.usable.ok()) {
      std::cout << "      " << plugin.description << "\n";
    } else {
      std::cout << "      not usable: " << plugin.usable.message() << "\n";
    }
  }
  std::cout << "  searched:";
  for (const std::string& folder : registry.folders()) std::cout << " " << folder;
  std::cout << "\n";
  bool usable = true;
  const auto check = [&](const absl::Status& status) {
    if (status.ok()) return;
    std::cout << "  " << status.message() << "\n";
    usable = false;
  };
  check(registry.FindTransport(config.GetString("BYTEPS_TRANSPORT")).status());
  check(registry.FindScheduler(config.GetString("BYTEPS_SCHEDULER")).status());
  return usable;
}

int Run(bool all) {
  PrintVersions();
  absl::StatusOr<Config> config = Config::Make(ReadEnvironment());
  if (!config.ok()) {
    std::cerr << "bps_info: " << config.status().message() << "\n";
    return 2;
  }
  const bool usable = PrintPlugins(*config);
  std::cout << ConfigText(*config, all);
  if (!config->warnings().empty()) std::cout << "\nWarnings\n";
  for (const std::string& warning : config->warnings()) std::cout << "  " << warning << "\n";
  return usable ? 0 : 1;
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  if (argc > 2 || (argc == 2 && option != "--all" && option != "--markdown" && option != "--help")) {
    std::cerr << byteps::kHelp;
    return 2;
  }
  if (option == "--help") {
    std::cout << byteps::kHelp;
    return 0;
  }
  if (option == "--markdown") {
    std::cout << byteps::ConfigMarkdown();
    return 0;
  }
  return byteps::Run(option == "--all");
}
