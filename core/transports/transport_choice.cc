#include "core/transports/transport_choice.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace byteps {
namespace {

// Best first. The last one works everywhere.
constexpr const char* kCandidates[] = {"efa", "verbs", "tcp"};

// Why `name` cannot be used at this address; "" if it can.
std::string WhyNot(PluginRegistry* registry, const std::string& name, const std::string& local_host) {
  std::string reason = registry->WhyNotTransport(name);
  // A device may be there and have nothing to do with the address that the job uses. What works everywhere need not be
  // tried: its error, if there is one, is better told by opening it.
  if (reason.empty() && name != std::string(*std::rbegin(kCandidates))) {
    const absl::StatusOr<Transport> trial = registry->OpenTransport(name, local_host);
    if (!trial.ok()) reason = std::string(trial.status().message());
  }
  return reason;
}

// For errors: where a plugin was sought that is not installed; "" if that is the reason of none.
std::string Sought(const PluginRegistry& registry, const std::vector<std::string>& reasons) {
  if (std::find(reasons.begin(), reasons.end(), PluginRegistry::kNotInstalled) == reasons.end()) return "";
  return absl::StrCat(". Plugins were sought in ",
                      registry.folders().empty() ? "no folder" : absl::StrJoin(registry.folders(), ", "),
                      "; BYTEPS_PLUGIN_PATH names more");
}

// The first of `candidates` that can be used; `asked_by`: the setting that leaves the choice to us.
absl::StatusOr<std::string> FirstUsable(PluginRegistry* registry, const std::vector<std::string>& candidates,
                                        const std::string& asked_by, const Logger& log, const std::string& local_host) {
  std::vector<std::string> refused, reasons;
  for (const std::string& name : candidates) {
    const std::string reason = WhyNot(registry, name, local_host);
    if (reason.empty()) {
      BPS_LOG(log, kInfo) << "transport " << name << ", chosen by " << asked_by << ": "
                          << (refused.empty() ? "the best there is" : absl::StrJoin(refused, "; "));
      return name;
    }
    refused.push_back(absl::StrCat("not ", name, " (", reason, ")"));
    reasons.push_back(reason);
  }
  return absl::UnavailableError(absl::StrCat("no transport can be used here, for ", asked_by, ": ",
                                             absl::StrJoin(refused, "; "), Sought(*registry, reasons),
                                             ". Repair one of them, or name another by BYTEPS_TRANSPORT"));
}

std::vector<std::string> Candidates() { return {std::begin(kCandidates), std::end(kCandidates)}; }

}  // namespace

absl::StatusOr<std::string> ChooseTransport(PluginRegistry* registry, const Config& config, const Logger& log,
                                            const std::string& local_host) {
  const std::string& wanted = config.GetString("BYTEPS_TRANSPORT");
  const bool named = config.IsSet("BYTEPS_TRANSPORT");
  const bool original = config.IsSet("DMLC_ENABLE_RDMA");
  const std::string asked = absl::StrCat("DMLC_ENABLE_RDMA=", config.GetString("DMLC_ENABLE_RDMA"));
  if (named && original) {
    BPS_LOG(log, kInfo) << "BYTEPS_TRANSPORT=" << wanted << " wins over " << asked;
  }
  absl::StatusOr<std::string> name = NamedTransport(config);
  if (!name.ok()) return name.status();
  if (named || !original) {
    return name->empty() ? FirstUsable(registry, Candidates(), "BYTEPS_TRANSPORT=auto", log, local_host) : name;
  }
  if (name->empty()) return FirstUsable(registry, {"efa", "tcp"}, asked, log, local_host);
  if (const std::string reason = registry->WhyNotTransport(*name); !reason.empty()) {
    return absl::UnavailableError(absl::StrCat(asked, " asks for the transport ", *name,
                                               ", which cannot be used here: ", reason, Sought(*registry, {reason}),
                                               ". BYTEPS_TRANSPORT=auto takes the best there is"));
  }
  BPS_LOG(log, kInfo) << "transport " << *name << ", as " << asked << " asks; BYTEPS_TRANSPORT=" << *name
                      << " says the same";
  return name;
}

absl::StatusOr<std::string> NamedTransport(const Config& config) {
  if (config.IsSet("BYTEPS_TRANSPORT")) {
    const std::string& wanted = config.GetString("BYTEPS_TRANSPORT");
    return absl::AsciiStrToLower(absl::string_view(wanted.data(), wanted.size())) == "auto" ? "" : wanted;
  }
  if (!config.IsSet("DMLC_ENABLE_RDMA")) return "";
  const std::string& value = config.GetString("DMLC_ENABLE_RDMA");
  if (value == "0" || value == "zmq") return "tcp";
  if (value == "1" || value == "ibverbs") return "verbs";
  if (value == "fabric") return "";
  return absl::InvalidArgumentError(
      absl::StrCat("DMLC_ENABLE_RDMA=", value,
                   ": there is no such transport here; take BYTEPS_TRANSPORT=verbs for InfiniBand and RoCE, efa "
                   "for AWS, tcp for any network, or auto for the best of these"));
}

}  // namespace byteps
