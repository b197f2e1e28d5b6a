#include "core/plugin/plugin_check.h"

#include <cstddef>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plugin/plugin_host.h"

namespace byteps {
namespace {

absl::Status Unusable(const std::string& what) { return absl::FailedPreconditionError(what); }

// Calls the entry and sees that it gives a descriptor with its own word about itself.
template <typename Plugin>
absl::Status CallEntry(int32_t (*entry)(const bps_plugin_host*, const Plugin**), const Plugin** plugin) {
  int32_t code = BPS_OK;
  *plugin = nullptr;
  bps_failure failure;
  try {
    const EntryFailure told(&failure);
    code = entry(PluginHost(), plugin);
  } catch (const std::exception& error) {
    return Unusable(absl::StrCat("its entry function threw an exception: ", error.what()));
  } catch (...) {
    return Unusable("its entry function threw an exception");
  }
  if (code != BPS_OK && failure.reason.empty()) {
    return MakeStatus(code, absl::StrCat("its entry function answered ", StatusCodeName(code), " and gave no reason"));
  }
  if (code != BPS_OK) return FailureStatus(code, failure, "its entry function answered that it cannot be used here");
  if (*plugin == nullptr) return Unusable("its entry function answered success and no descriptor");
  if ((*plugin)->struct_size < sizeof(Plugin) || (*plugin)->info.struct_size < sizeof(bps_plugin_info)) {
    return Unusable(absl::StrCat("its descriptor has ", (*plugin)->struct_size, " bytes (of its info ",
                                 (*plugin)->info.struct_size, "), expected at least ", sizeof(Plugin), " (",
                                 sizeof(bps_plugin_info), "): it was compiled against another plugin contract"));
  }
  return absl::OkStatus();
}

// The minor may be newer than ours: it then has functions we do not call. It cannot be older than the first.
absl::Status CheckInfo(const bps_plugin_info& info, const char* kind, std::string_view name, int32_t our_minor) {
  if (info.abi_minor < 0) {
    return Unusable(absl::StrCat("it claims minor version ", info.abi_minor, " of the plugin contract, expected 0 to ",
                                 our_minor, " or a later one"));
  }
  if (info.kind == nullptr || info.name == nullptr || info.version == nullptr || info.description == nullptr) {
    return Unusable("it does not say its kind, name, version and description");
  }
  if (std::string_view(info.kind) != kind) {
    return Unusable(absl::StrCat("it says that it is a ", info.kind, " plugin, expected a ", kind, " plugin"));
  }
  if (!name.empty() && name != info.name) {
    return Unusable(absl::StrCat("it calls itself \"", info.name, "\", but its file is that of \"", std::string(name),
                                 "\": rename the file or correct the plugin"));
  }
  return absl::OkStatus();
}

// Remembers the first function of a table that is not there.
template <typename Table>
class Required {
 public:
  explicit Required(const Table* table) : table_(table) {}
  template <typename Function>
  Required& Has(const char* name, size_t offset, Function Table::*entry) {
    // Beyond the plugin's struct_size there is no memory to look at.
    const bool there =
        table_ != nullptr && table_->struct_size >= offset + sizeof(Function) && table_->*entry != nullptr;
    if (!there) missing_ += missing_.empty() ? name : absl::StrCat(", ", name);
    return *this;
  }
  absl::Status status() const {
    if (table_ == nullptr) return Unusable("it has no function table");
    if (missing_.empty()) return absl::OkStatus();
    return Unusable(
        absl::StrCat("its function table (", table_->struct_size, " bytes) lacks the required: ", missing_));
  }

 private:
  const Table* table_;
  std::string missing_;
};

#define BPS_REQUIRE(table, entry) Has(#entry, offsetof(table, entry), &table::entry)

}  // namespace

absl::Status CheckTransportPlugin(bps_transport_plugin_fn entry, std::string_view name,
                                  const bps_transport_plugin** plugin) {
  if (absl::Status status = CallEntry(entry, plugin); !status.ok()) return status;
  const bps_transport_plugin& found = **plugin;
  if (absl::Status status = CheckInfo(found.info, "transport", name, BPS_TRANSPORT_ABI_MINOR); !status.ok()) {
    return status;
  }
  if (found.probe == nullptr) return Unusable("its descriptor lacks the required: probe");
  using Table = bps_transport_table;
  return Required<Table>(found.table)
      .BPS_REQUIRE(Table, open)
      .BPS_REQUIRE(Table, close)
      .BPS_REQUIRE(Table, caps)
      .BPS_REQUIRE(Table, address)
      .BPS_REQUIRE(Table, connect)
      .BPS_REQUIRE(Table, disconnect)
      .BPS_REQUIRE(Table, reg)
      .BPS_REQUIRE(Table, unreg)
      .BPS_REQUIRE(Table, export_key)
      .BPS_REQUIRE(Table, post_send)
      .BPS_REQUIRE(Table, post_write)
      .BPS_REQUIRE(Table, poll)
      .BPS_REQUIRE(Table, release)
      .status();
}

absl::Status CheckSchedulerPlugin(bps_scheduler_plugin_fn entry, std::string_view name,
                                  const bps_scheduler_plugin** plugin) {
  if (absl::Status status = CallEntry(entry, plugin); !status.ok()) return status;
  const bps_scheduler_plugin& found = **plugin;
  if (absl::Status status = CheckInfo(found.info, "scheduler", name, BPS_SCHEDULER_ABI_MINOR); !status.ok()) {
    return status;
  }
  using Table = bps_scheduler_table;
  return Required<Table>(found.table)
      .BPS_REQUIRE(Table, create)
      .BPS_REQUIRE(Table, destroy)
      .BPS_REQUIRE(Table, enqueue)
      .BPS_REQUIRE(Table, next)
      .BPS_REQUIRE(Table, sent)
      .BPS_REQUIRE(Table, complete)
      .BPS_REQUIRE(Table, withdraw)
      .status();
}

const bps_device_collectives* DeviceCollectives(const bps_device_plugin& plugin) {
  constexpr size_t kEnd = offsetof(bps_device_plugin, collectives) + sizeof plugin.collectives;
  return plugin.struct_size >= kEnd ? plugin.collectives : nullptr;
}

absl::Status CheckDevicePlugin(bps_device_plugin_fn entry, std::string_view name, const bps_device_plugin** plugin) {
  if (absl::Status status = CallEntry(entry, plugin); !status.ok()) return status;
  const bps_device_plugin& found = **plugin;
  if (absl::Status status = CheckInfo(found.info, "device", name, BPS_DEVICE_ABI_MINOR); !status.ok()) return status;
  if (found.probe == nullptr || found.count == nullptr || found.facts == nullptr || found.versions == nullptr) {
    return Unusable("its descriptor lacks one of the required: probe, count, facts, versions");
  }
  if (const bps_device_collectives* collectives = DeviceCollectives(found); collectives != nullptr) {
    using Collectives = bps_device_collectives;
    absl::Status status = Required<Collectives>(collectives)
                              .BPS_REQUIRE(Collectives, unique_id)
                              .BPS_REQUIRE(Collectives, join)
                              .BPS_REQUIRE(Collectives, state)
                              .BPS_REQUIRE(Collectives, leave)
                              .BPS_REQUIRE(Collectives, abort)
                              .BPS_REQUIRE(Collectives, begin)
                              .BPS_REQUIRE(Collectives, end)
                              .BPS_REQUIRE(Collectives, reduce_scatter)
                              .BPS_REQUIRE(Collectives, all_gather)
                              .BPS_REQUIRE(Collectives, all_reduce)
                              .BPS_REQUIRE(Collectives, reduce)
                              .BPS_REQUIRE(Collectives, broadcast)
                              .BPS_REQUIRE(Collectives, send)
                              .BPS_REQUIRE(Collectives, receive)
                              .status();
    if (!status.ok()) return status;
  }
  using Table = bps_device_table;
  return Required<Table>(found.table)
      .BPS_REQUIRE(Table, open)
      .BPS_REQUIRE(Table, close)
      .BPS_REQUIRE(Table, allocate)
      .BPS_REQUIRE(Table, release)
      .BPS_REQUIRE(Table, allocate_host)
      .BPS_REQUIRE(Table, release_host)
      .BPS_REQUIRE(Table, register_host)
      .BPS_REQUIRE(Table, unregister_host)
      .BPS_REQUIRE(Table, pointer)
      .BPS_REQUIRE(Table, stream_create)
      .BPS_REQUIRE(Table, stream_destroy)
      .BPS_REQUIRE(Table, stream_state)
      .BPS_REQUIRE(Table, stream_wait)
      .BPS_REQUIRE(Table, event_create)
      .BPS_REQUIRE(Table, event_destroy)
      .BPS_REQUIRE(Table, event_record)
      .BPS_REQUIRE(Table, event_query)
      .BPS_REQUIRE(Table, copy_to_host)
      .BPS_REQUIRE(Table, copy_to_device)
      .BPS_REQUIRE(Table, copy_within)
      .BPS_REQUIRE(Table, fill)
      .BPS_REQUIRE(Table, synchronize)
      .status();
}

}  // namespace byteps
