#include "tools/info/plugin_facts.h"

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/info/pci_distance.h"

namespace byteps {
namespace {

constexpr struct {
  uint32_t flag;
  const char* name;
} kFlags[] = {{BPS_TRANSPORT_READ, "read"},
              {BPS_TRANSPORT_MAP_REMOTE, "map_remote"},
              {BPS_TRANSPORT_COPY, "copy"},
              {BPS_TRANSPORT_CUDA, "cuda"},
              {BPS_TRANSPORT_WAIT_FD, "wait_fd"},
              {BPS_TRANSPORT_WRITE_ORDERED, "write_ordered"},
              {BPS_TRANSPORT_LOCAL_ANY, "local_any"},
              {BPS_TRANSPORT_CHEAP_REG, "cheap_reg"},
              {BPS_TRANSPORT_REG_ADDRESSES, "reg_addresses"}};

std::string Contract(const bps_plugin_info& info) { return absl::StrCat("1.", info.abi_minor); }

// An entry that is in the table that the plugin was compiled with, and set.
#define BPS_PROVIDES(table, entry) \
  ((table).struct_size >= offsetof(bps_scheduler_table, entry) + sizeof((table).entry) && (table).entry != nullptr)

void AddScheduler(const bps_scheduler_table& table, std::vector<std::string>* abilities) {
  if (BPS_PROVIDES(table, peers)) abilities->emplace_back("peers");
  if (BPS_PROVIDES(table, stats)) abilities->emplace_back("stats");
  if (BPS_PROVIDES(table, wake_at)) abilities->emplace_back("wake_at");
  if (BPS_PROVIDES(table, rate)) abilities->emplace_back("rate");
  if (BPS_PROVIDES(table, agreed)) abilities->emplace_back("agreed");
}

#undef BPS_PROVIDES

void AddTransport(const bps_transport_caps& caps, std::vector<std::string>* abilities) {
  for (const auto& [flag, name] : kFlags) {
    if ((caps.flags & flag) != 0) abilities->emplace_back(name);
  }
  abilities->push_back(absl::StrCat("messages of ", caps.max_message, " bytes"));
}

// Which driver, GPUs and collectives there are.
void AddDevice(const bps_device_plugin& plugin, const PluginConfig* config, std::vector<std::string>* abilities) {
  bps_device_versions versions = {};
  versions.struct_size = sizeof versions;
  if (plugin.versions(config, &versions, nullptr) == BPS_OK) {
    const bool collectives = versions.collectives != nullptr && versions.collectives[0] != '\0';
    abilities->push_back(versions.driver);
    abilities->push_back(collectives ? versions.collectives : absl::StrCat("no collectives: ", versions.why_not));
  }
  int32_t count = 0;
  if (plugin.count(config, &count, nullptr) != BPS_OK) return;
  for (int32_t index = 0; index < count; ++index) {
    bps_device_facts facts = {};
    facts.struct_size = sizeof facts;
    if (plugin.facts(config, index, &facts, nullptr) != BPS_OK) continue;
    std::string text = absl::StrCat("device ", index, ": ", facts.name, ", ", facts.memory >> 20, " MiB");
    if (facts.major != 0) absl::StrAppend(&text, ", compute ", facts.major, ".", facts.minor);
    if (facts.pci != nullptr && facts.pci[0] != '\0') {
      absl::StrAppend(&text, ", PCI ", facts.pci, NearestCards("", facts.pci));
    }
    abilities->push_back(std::move(text));
  }
}

}  // namespace

PluginFacts FactsOf(PluginRegistry* registry, const PluginListing& plugin) {
  PluginFacts facts;
  if (plugin.kind == "scheduler") {
    const absl::StatusOr<const bps_scheduler_plugin*> found = registry->FindScheduler(plugin.path);
    if (!found.ok()) return facts;
    facts.contract = Contract((*found)->info);
    AddScheduler(*(*found)->table, &facts.abilities);
    return facts;
  }
  if (plugin.kind == "device") {
    const absl::StatusOr<const bps_device_plugin*> found = registry->FindDevice(plugin.path);
    if (!found.ok()) return facts;
    facts.contract = Contract((*found)->info);
    AddDevice(**found, &registry->config(), &facts.abilities);
    return facts;
  }
  const absl::StatusOr<const bps_transport_plugin*> found = registry->FindTransport(plugin.path);
  if (!found.ok()) return facts;
  facts.contract = Contract((*found)->info);
  const absl::StatusOr<Transport> opened = registry->OpenTransport(plugin.path, "");
  if (opened.ok()) AddTransport(opened->caps(), &facts.abilities);
  return facts;
}

}  // namespace byteps
