// bps_info - what is installed here, what this host offers, and how it is configured (--help).
//
// Exits with 0; with 1 if what the configuration chooses cannot be used, or a transport that should work does not
// (--check); with 2 if the configuration or the call is wrong.

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "abi/transport.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/base/version.h"
#include "core/config/config.h"
#include "core/config/config_format.h"
#include "core/wire/wire.h"
#include "tools/groups_report.h"
#include "tools/info/check_report.h"
#include "tools/info/host_report.h"
#include "tools/info/installation.h"
#include "tools/info/json_report.h"
#include "tools/info/links_report.h"
#include "tools/info/loopback_worker.h"
#include "tools/info/plugins_report.h"
#include "tools/model_file.h"
#include "tools/paths_report.h"
#include "tools/placement_report.h"

namespace byteps {
namespace {

constexpr char kHelp[] = R"(NAME
    bps_info - what of BytePS is installed here, what this host offers, and how it is configured

SYNOPSIS
    bps_info [--all] [--json] [--check [--timeout SECONDS]]
    bps_info --markdown
    bps_info --placement MODEL [--servers N] [--workers N] [--colocate K] [--rate R]
    bps_info --paths [--workers N] [--local L] [--servers N] [--colocate K] [--rate R]

DESCRIPTION
    Without options it prints
      - the versions of this release, of its contracts and of the library that trainers load
      - the plugins: name, version, file, and whether each can be used here, or why not; the folders that were
        searched; and what the configuration chooses
      - the network interfaces and RDMA devices, with their links
      - cores, NUMA nodes, memory, how much of it may be locked, huge pages
      - the groups that define the order of a reduction
      - the configuration in force, with the source of each value: argument, environment, alias or default
    It starts nothing and changes nothing.

OPTIONS
    --all           also the variables that this release does not act on
    --check         then try every transport that can be used here: a coordinator, a server and two workers of this
                    host exchange 4 bytes and 16 MB through it, every sum is checked, and a line says how long they
                    took (median) or what went wrong; "local" is the reduction of the workers of one host among
                    themselves. It takes some seconds for each, and leaves nothing running
    --json          the same as one object of JSON, in a line; docs/tools.md names its members
    --timeout S     with --check: seconds until all have arrived, and for each operation (30)
    --markdown      docs/configuration.md, on standard output
    --placement M   which server gets what of resnet50, vgg16, bert-large, transformer or the file M, with
                    --servers and --workers (hosts; 4 and 4), --colocate of the servers on worker hosts (0), and the
                    configuration in force: the first cut, or with --rate, such as 10gbit, the one that a job on
                    links of that rate has from its second round on
    --paths         which way the collectives of a job go, by size, and what each way costs there: --workers hosts
                    (4) of --local workers each (1), with --servers (4), --colocate of them on worker hosts (0), on
                    links of --rate (10gbit). docs/collectives.md has the formula
    --help          this page

EXIT STATUS
    0   all is well
    1   the transport or scheduler that the configuration chooses cannot be used, or not at the address that it names,
        or a transport failed in --check
    2   the configuration or the call is wrong

ENVIRONMENT
    All variables of docs/configuration.md. BYTEPS_PLUGIN_PATH names folders of plugins, BYTEPS_LIBRARY and
    BYTEPS_SERVER_BINARY the library and the server's program that --check uses.
    For another host, interface or device than the first that works: DMLC_NODE_HOST, DMLC_INTERFACE,
    BYTEPS_RDMA_DEVICE.
)";

struct Options {
  bool all = false;
  bool check = false;
  bool json = false;
  int64_t timeout_seconds = 30;
};

void PrintVersions(const Config& config) {
  std::cout << "BytePS " << kRelease << "\n"
            << "  C ABI " << BPS_ABI_MAJOR << "." << BPS_ABI_MINOR << ", transport plugins 1."
            << BPS_TRANSPORT_ABI_MINOR << ", scheduler plugins 1." << BPS_SCHEDULER_ABI_MINOR << ", wire protocol "
            << wire::kVersion << "\n";
  const absl::StatusOr<std::string> library = FindLibrary(config);
  std::cout << "  library " << (library.ok() ? LibraryReport(*library) : std::string(library.status().message()))
            << "\n";
  const absl::StatusOr<std::string> server = FindServer(config);
  std::cout << "  server " << (server.ok() ? *server : std::string(server.status().message())) << "\n";
}

void PrintGroups(const absl::StatusOr<std::string>& groups) {
  std::cout << "\nReduction\n";
  if (groups.ok()) {
    std::cout << *groups;
  } else {
    std::cout << "  " << groups.status().message() << "\n";
  }
}

// The environment's; in a checkout the plugins that were built there, where none are named.
absl::StatusOr<Config> ReadConfig() {
  Environment environment = ReadEnvironment();
  const std::string built = PluginsOfCheckout();
  if (built.empty() || !environment["BYTEPS_PLUGIN_PATH"].empty()) return Config::Make(environment);
  setenv("BYTEPS_PLUGIN_PATH", built.c_str(), 1);  // for the processes of --check, too
  return Config::Make(environment, {{"BYTEPS_PLUGIN_PATH", built}});
}

// All variables, also those that are none of ours.
std::map<std::string, std::string> AllVariables() {
  std::map<std::string, std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

// `out`: for each line, as soon as it is known.
bool Check(const Config& config, const PluginsReport& plugins, const Options& options, std::ostream& out,
           std::vector<CheckResult>* results) {
  LoopbackOptions loopback;
  loopback.program = "/proc/self/exe";
  loopback.environment = AllVariables();
  loopback.timeout = options.timeout_seconds * kSecond;
  out << "\nCheck: push_pull on this host, over one transport at a time\n";
  return ReportCheck(config, plugins.transports, loopback, out, results);
}

int Run(const Options& options) {
  absl::StatusOr<Config> config = ReadConfig();
  if (!config.ok()) {
    std::cerr << "bps_info: " << config.status().message() << "\n";
    return 2;
  }
  const PluginsReport plugins = ReportPlugins(*config);
  const absl::StatusOr<std::string> groups = GroupsReport(*config);
  bool usable = groups.ok() && plugins.usable;
  std::vector<CheckResult> results;
  if (options.json) {
    std::ostream nowhere(nullptr);
    if (options.check) usable &= Check(*config, plugins, options, nowhere, &results);
    std::cout << JsonReport(*config, plugins, groups,
                            {.all = options.all, .usable = usable, .check = options.check ? &results : nullptr})
              << "\n";
    return usable ? 0 : 1;
  }
  PrintVersions(*config);
  std::cout << "\nPlugins\n" << plugins.text;
  std::cout << "\nDevices and links\n" << LinksReport("", Interfaces());
  std::cout << "\nHost\n" << HostReport("", LockedMemoryLimit());
  PrintGroups(groups);
  std::cout << ConfigText(*config, options.all);
  if (!config->warnings().empty()) std::cout << "\nWarnings\n";
  for (const std::string& warning : config->warnings()) std::cout << "  " << warning << "\n";
  if (options.check) usable &= Check(*config, plugins, options, std::cout, &results);
  return usable ? 0 : 1;
}

int Usage(const std::string& what) {
  std::cerr << "bps_info: " << what << "; bps_info --help tells all\n";
  return 2;
}

int Fail(const absl::Status& status, int code) {
  std::cerr << "bps_info: " << status.message() << "\n";
  return code;
}

absl::Status ReadNumber(const std::string& option, const std::string& text, uint32_t* number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(option + " " + text + ": not a whole number");
}

// Reads `words` from `first` on: options of `report`, a value after each. `number(option)` is where an option's value
// goes, null if there is no such option; --rate is the rate of a link.
template <typename Number>
absl::Status ReadOptions(const std::string& report, const std::vector<std::string>& words, size_t first, Number number,
                         double* link_rate) {
  for (size_t i = first; i < words.size(); i += 2) {
    if (words[i] == "--rate") {
      const absl::StatusOr<double> rate = ParseLinkRate(words[i + 1]);
      if (!rate.ok()) return rate.status();
      *link_rate = *rate;
      continue;
    }
    uint32_t* value = number(words[i]);
    if (value == nullptr) {
      return absl::InvalidArgumentError("unknown option " + words[i] + " of " + report + "; bps_info --help tells all");
    }
    if (absl::Status status = ReadNumber(words[i], words[i + 1], value); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// `words`: what follows --paths.
int ReportPaths(const std::vector<std::string>& words) {
  PathsRequest request;
  if (words.size() % 2 != 0) return Usage("--paths takes options, and a value after each");
  const auto number = [&](const std::string& option) {
    return option == "--servers"    ? &request.servers
           : option == "--workers"  ? &request.workers
           : option == "--local"    ? &request.local
           : option == "--colocate" ? &request.colocated
                                    : nullptr;
  };
  if (absl::Status status = ReadOptions("--paths", words, 0, number, &request.link_rate); !status.ok()) {
    return Fail(status, 2);
  }
  const absl::StatusOr<Config> config = Config::Make(ReadEnvironment());
  if (!config.ok()) return Fail(config.status(), 2);
  const absl::StatusOr<std::string> report = PathsReport(request, *config);
  if (!report.ok()) return Fail(report.status(), 2);
  std::cout << *report;
  return 0;
}

// `words`: what follows --placement.
int ReportPlacement(const std::vector<std::string>& words) {
  PlacementRequest request;
  if (words.empty() || words.size() % 2 == 0) return Usage("--placement takes a model, and a value after each option");
  const auto number = [&](const std::string& option) {
    return option == "--servers"    ? &request.servers
           : option == "--workers"  ? &request.workers
           : option == "--colocate" ? &request.colocated
                                    : nullptr;
  };
  if (absl::Status status = ReadOptions("--placement", words, 1, number, &request.link_rate); !status.ok()) {
    return Fail(status, 2);
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

int Main(const std::vector<std::string>& words) {
  Options options;
  const auto whole_number = [](const std::string& text, int64_t* number) {
    const auto read = std::from_chars(text.data(), text.data() + text.size(), *number);
    return read.ec == std::errc() && read.ptr == text.data() + text.size();
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--paths") return ReportPaths({words.begin() + static_cast<ptrdiff_t>(i) + 1, words.end()});
    if (word == "--placement") return ReportPlacement({words.begin() + static_cast<ptrdiff_t>(i) + 1, words.end()});
    if (word == "--help" || word == "-h") {
      std::cout << kHelp;
      return 0;
    }
    if (word == "--markdown") {
      std::cout << ConfigMarkdown();
      return 0;
    }
    if (word == kLoopbackWorkerOption && words.size() == 2) return RunLoopbackWorker(words[1]);
    if (word == "--all") {
      options.all = true;
    } else if (word == "--check") {
      options.check = true;
    } else if (word == "--json") {
      options.json = true;
    } else if (word == "--timeout") {
      if (++i == words.size() || !whole_number(words[i], &options.timeout_seconds) || options.timeout_seconds < 1 ||
          options.timeout_seconds > 3600) {
        return Usage("--timeout takes a number of seconds, 1 to 3600");
      }
    } else {
      return Usage("unknown option " + word);
    }
  }
  return Run(options);
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  const int code = byteps::Main({argv + 1, argv + argc});
  std::cout.flush();
  if (std::cout) return code;
  std::cerr << "bps_info: the output cannot be written\n";
  return 1;
}
