#include "tools/info/check_report.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/auth.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/control/host_identity.h"
#include "tools/info/installation.h"
#include "tools/info/links_report.h"
#include "tools/info/loopback_worker.h"
#include "tools/info/plugins_report.h"

namespace byteps {
namespace {

// Within one host, and what the workers' own reduction runs on.
constexpr char kShm[] = "shm";

std::string OneLine(const absl::Status& status) {
  std::string text(status.message());
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Whether something of this host can listen at the numeric address.
bool HasAddress(const std::string& address) {
  struct addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST;
  struct addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<struct addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  const UniqueFd fd(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd && ::bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
}

// The address of this host that was named, or else one of loopback: that of the root, if it is one, or else IPv4's; on
// a host without it IPv6's.
absl::StatusOr<std::string> FirstAddress(const Config& config, OwnAddressOptions own) {
  if (!own.node_host.empty() || !own.interface.empty()) {
    absl::StatusOr<std::string> address = OwnAddress(own);
    if (own.node_host.empty() || !address.ok() || HasAddress(*address)) return address;
    return absl::InvalidArgumentError(
        absl::StrCat("DMLC_NODE_HOST=", own.node_host, ": no network interface of this host has that address"));
  }
  const std::string& root = config.GetString("DMLC_PS_ROOT_URI");
  for (const std::string& candidate : {root, std::string("127.0.0.1"), std::string("::1")}) {
    if (candidate.empty()) continue;
    own.coordinator = candidate;
    absl::StatusOr<std::string> address = OwnAddress(own);
    if (address.ok() && IsLoopback(*address)) return address;
  }
  return absl::UnavailableError(
      "neither 127.0.0.1 nor ::1 can be reached: the loopback interface is down, where the processes of the check "
      "meet; as root: ip link set lo up");
}

// Addresses at which a transport may have its device: the first one and, if none was named, all others.
absl::StatusOr<std::vector<std::string>> Addresses(const Config& config) {
  const OwnAddressOptions own{.node_host = config.GetString("DMLC_NODE_HOST"),
                              .interface = config.GetString("DMLC_INTERFACE")};
  const absl::StatusOr<std::string> first = FirstAddress(config, own);
  if (!first.ok()) return first.status();
  std::vector<std::string> addresses = {*first};
  if (!own.node_host.empty() || !own.interface.empty()) return addresses;
  for (const auto& [name, facts] : Interfaces()) {
    for (const std::string& address : facts.addresses) {
      if (address != *first && !IsLoopback(address)) addresses.push_back(address);
    }
  }
  return addresses;
}

// The first address at which an endpoint of the transport opens.
absl::StatusOr<std::string> UsableAddress(const Config& config, const std::string& transport) {
  const absl::StatusOr<std::vector<std::string>> addresses = Addresses(config);
  if (!addresses.ok()) return addresses.status();
  LogOptions quiet;
  quiet.level = LogLevel::kFatal;
  const Logger log(quiet);
  PluginRegistry registry(config, log);
  absl::Status why;
  for (const std::string& address : *addresses) {
    const absl::StatusOr<Transport> trial = registry.OpenTransport(transport, address);
    if (trial.ok()) return address;
    why = trial.status();
  }
  return why;
}

std::string Shown(const LoopbackTimes& times) {
  char text[160];
  std::snprintf(text, sizeof(text), "ok    4 bytes in %.0f us, %zu MB in %.1f ms (%.2f GB/s)", times.small_us,
                kLoopbackBytes / 1'000'000, times.large_us / 1000,
                static_cast<double>(kLoopbackBytes) / times.large_us / 1000);
  return text;
}

std::string Subject(const std::string& name) {
  return absl::StrCat("  ", name, std::string(name.size() < 8 ? 8 - name.size() : 1, ' '));
}

}  // namespace

const char* CheckOutcomeName(CheckOutcome outcome) {
  switch (outcome) {
    case CheckOutcome::kOk:
      return "ok";
    case CheckOutcome::kUnusable:
      return "not usable";
    case CheckOutcome::kError:
      break;
  }
  return "error";
}

bool ReportCheck(const Config& config, const std::vector<PluginListing>& transports, LoopbackOptions options,
                 std::ostream& out, std::vector<CheckResult>* results) {
  const absl::StatusOr<std::string> library = FindLibrary(config);
  const absl::StatusOr<std::string> server = FindServer(config);
  for (const absl::Status& status : {library.status(), server.status()}) {
    if (status.ok()) continue;
    out << "  cannot be done: " << OneLine(status) << "\n";
    results->push_back({.name = "all", .outcome = CheckOutcome::kError, .times = {}, .why = OneLine(status)});
    return false;
  }
  options.library = *library;
  options.server = *server;
  const LoopbackCheck check(std::move(options));
  const auto tell = [&](CheckResult result, const std::string& remark) {
    out << (result.outcome == CheckOutcome::kOk         ? Shown(result.times)
            : result.outcome == CheckOutcome::kUnusable ? "not usable: " + result.why
                                                        : "ERROR " + result.why)
        << remark << "\n"
        << std::flush;
    results->push_back(std::move(result));
  };
  const auto run = [&](const std::string& name, const LoopbackRoute& route, const std::string& remark) {
    out << Subject(name) << std::flush;
    const absl::StatusOr<LoopbackTimes> times = check.Run(route);
    if (times.ok()) {
      tell({.name = name, .outcome = CheckOutcome::kOk, .times = *times, .why = ""}, remark);
    } else {
      tell({.name = name, .outcome = CheckOutcome::kError, .times = {}, .why = OneLine(times.status())}, remark);
    }
  };
  for (const PluginListing& plugin : transports) {
    if (!plugin.usable.ok()) {
      out << Subject(plugin.name);
      tell({.name = plugin.name, .outcome = CheckOutcome::kUnusable, .times = {}, .why = WhyNotUsable(plugin)}, "");
      continue;
    }
    const absl::StatusOr<std::string> address = UsableAddress(config, plugin.name);
    if (!address.ok()) {
      out << Subject(plugin.name);
      tell({.name = plugin.name, .outcome = CheckOutcome::kError, .times = {}, .why = OneLine(address.status())}, "");
      continue;
    }
    run(plugin.name, {.transport = plugin.name, .address = *address}, absl::StrCat(", at ", *address));
    if (plugin.name == kShm) {
      run("local", {.transport = "", .address = *address}, ", by the workers themselves, without a server");
    }
  }
  if (transports.empty()) out << "  no transport was found\n";
  const auto failed = [](const CheckResult& result) { return result.outcome == CheckOutcome::kError; };
  return !transports.empty() && std::none_of(results->begin(), results->end(), failed);
}

}  // namespace byteps
