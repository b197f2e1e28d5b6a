// bps_info - what is installed here and how it is configured.
//
//     bps_info               versions, plugins, groups of the reduction, and the configuration in force with the source of
//                            each value
//     bps_info --all         also the variables that this release does not act on
//     bps_info --markdown    docs/configuration.md, on standard output
//     bps_info --placement resnet50 --servers 4        who gets what of that network
//
// Exits with 0; with 1 if a plugin that is chosen cannot be used; with 2 if the configuration or the call is wrong.

#include <charconv>
#include <iostream>
#include <string>
#include <vector>

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
#include "tools/groups_report.h"
#include "tools/model_file.h"
#include "tools/placement_report.h"

namespace byteps {
namespace {

constexpr char kHelp[] =
    "bps_info: what of BytePS is installed here and how it is configured\n\n"
    "  bps_info               versions, plugins, and the configuration in force with the source of each value\n"
    "  bps_info --all         also the variables that this release does not act on\n"
    "  bps_info --markdown    the page docs/configuration.md\n"
    "  bps_info --placement MODEL [--servers N] [--workers N] [--colocate K]\n"
    "                         which server gets what of resnet50, vgg16, bert-large, transformer or the file MODEL,\n"
    "                         with N servers and N worker hosts (4 and 4), K of the servers on worker hosts (0), and\n"
    "                         the configuration in force\n";

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

// Likewise.
bool PrintGroups(const Config& config) {
  const absl::StatusOr<std::string> report = GroupsReport(config);
  std::cout << "\nReduction\n";
  if (report.ok()) {
    std::cout << *report;
  } else {
    std::cout << "  " << report.status().message() << "\n";
  }
  return report.ok();
}

int Run(bool all) {
  PrintVersions();
  absl::StatusOr<Config> config = Config::Make(ReadEnvironment());
  if (!config.ok()) {
    std::cerr << "bps_info: " << config.status().message() << "\n";
    return 2;
  }
  bool usable = PrintPlugins(*config);
  usable &= PrintGroups(*config);
  std::cout << ConfigText(*config, all);
  if (!config->warnings().empty()) std::cout << "\nWarnings\n";
  for (const std::string& warning : config->warnings()) std::cout << "  " << warning << "\n";
  return usable ? 0 : 1;
}

int Fail(const absl::Status& status, int code) {
  std::cerr << "bps_info: " << status.message() << "\n";
  return code;
}

// `words`: what follows --placement.
int ReportPlacement(const std::vector<std::string>& words) {
  PlacementRequest request;
  if (words.empty() || words.size() % 2 == 0) {
    std::cerr << kHelp;
    return 2;
  }
  for (size_t i = 1; i < words.size(); i += 2) {
    uint32_t* number = words[i] == "--servers"    ? &request.servers
                       : words[i] == "--workers"  ? &request.workers
                       : words[i] == "--colocate" ? &request.colocated
                                                  : nullptr;
    if (number == nullptr) {
      std::cerr << kHelp;
      return 2;
    }
    const std::string& text = words[i + 1];
    const auto read = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
      return Fail(absl::InvalidArgumentError(words[i] + " " + text + ": not a whole number"), 2);
    }
  }
  const absl::StatusOr<Config> config = Config::Make(ReadEnvironment());
  if (!config.ok()) return Fail(config.status(), 2);
  const absl::StatusOr<ModelFile> model = ReadModel(words[0]);
  if (!model.ok()) return Fail(model.status(), 2);
  const absl::StatusOr<std::string> report = PlacementReport(*model, request, *config);
  if (!report.ok()) return Fail(report.status(), 2);
  std::cout << *report;
  return 0;
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  if (option == "--placement") return byteps::ReportPlacement({argv + 2, argv + argc});
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
