#include "core/plugin/transport.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/status.h"
#include "core/plugin/plugin_host.h"

namespace byteps {
namespace {

// Is an optional entry within the table the plugin was compiled with, and set?
bool HasEntry(const bps_transport_table* table, size_t offset, const void* entry) {
  return table->struct_size >= offset + sizeof(void*) && entry != nullptr;
}

#define BPS_HAS_ENTRY(table, entry) \
  HasEntry(table, offsetof(bps_transport_table, entry), reinterpret_cast<const void*>((table)->entry))

}  // namespace

Transport::Transport(const bps_transport_table* table, bps_transport* handle)
    : table_(table), handle_(handle, Closer{table}) {
  caps_.struct_size = sizeof caps_;
  table_->caps(handle, &caps_);
  // A capability without its function is none.
  if (!BPS_HAS_ENTRY(table, post_read)) caps_.flags &= ~BPS_TRANSPORT_READ;
  if (!BPS_HAS_ENTRY(table, map_remote)) caps_.flags &= ~BPS_TRANSPORT_MAP_REMOTE;
  if (!BPS_HAS_ENTRY(table, copy_from) || !BPS_HAS_ENTRY(table, copy_to)) caps_.flags &= ~BPS_TRANSPORT_COPY;
  if (!BPS_HAS_ENTRY(table, wait_fd) || !BPS_HAS_ENTRY(table, arm)) caps_.flags &= ~BPS_TRANSPORT_WAIT_FD;
  shares_ = BPS_HAS_ENTRY(table, reg_shared);
  unmaps_ = BPS_HAS_ENTRY(table, unmap_remote);
  writes_ = BPS_HAS_ENTRY(table, begin_write) && BPS_HAS_ENTRY(table, end_write);
  sends_and_writes_ = BPS_HAS_ENTRY(table, post_send_and_write);
}

absl::StatusOr<Transport> Transport::Open(const bps_transport_plugin& plugin, const bps_transport_open_args& args) {
  bps_transport* handle = nullptr;
  bps_failure failure;
  int32_t code = BPS_OK;
  const std::string subject = std::string("transport \"") + plugin.info.name + "\"";
  try {
    code = plugin.table->open(&args, &handle, &failure);
  } catch (const std::exception& error) {
    return absl::InternalError(subject + " threw an exception in open: " + error.what());
  } catch (...) {
    return absl::InternalError(subject + " threw an exception in open");
  }
  if (code != BPS_OK) return FailureStatus(code, failure, subject + " could not be opened");
  if (handle == nullptr) return absl::InternalError(subject + " answered open with success and no endpoint");
  Transport transport(plugin.table, handle);
  transport.name_ = plugin.info.name;
  transport.says_why_ = plugin.info.abi_minor >= 1;
  const bps_transport_caps& caps = transport.caps();
  if (caps.immediate_bits < 24 || caps.max_message < 16384 || caps.receive_pool < 16 || caps.max_transfer == 0 ||
      caps.key_size > BPS_TRANSPORT_MAX_KEY) {
    return absl::InternalError(subject + " has capabilities below what abi/transport.h demands");
  }
  return transport;
}

Transport Transport::Adopt(const bps_transport_table* table, bps_transport* handle, std::string name) {
  Transport transport(table, handle);
  transport.name_ = std::move(name);
  return transport;
}

// What has no meaning for a plugin may be anything.
void Transport::ForgetWhy(bps_event* events, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (events[i].type == BPS_EVENT_PEER_DOWN) events[i].size = 0;
  }
}

absl::StatusOr<std::string> Transport::Address() {
  std::string address(BPS_TRANSPORT_MAX_ADDRESS, '\0');
  size_t size = address.size();
  bps_failure failure;
  const int32_t code = table_->address(handle(), address.data(), &size, &failure);
  if (code != BPS_OK) return FailureStatus(code, failure, "own transport address");
  address.resize(std::min(size, address.size()));
  return address;
}

absl::Status Transport::Connect(const bps_connect_args& args) {
  bps_failure failure;
  const int32_t code = table_->connect(handle(), &args, &failure);
  return code == BPS_OK ? absl::OkStatus() : FailureStatus(code, failure, "");  // callers say whom to
}

absl::Status Transport::Reg(void* base, size_t size, bps_region** region) {
  bps_failure failure;
  const int32_t code = table_->reg(handle(), base, size, region, &failure);
  return code == BPS_OK ? absl::OkStatus()
                        : FailureStatus(code, failure, "registering " + std::to_string(size) + " bytes of memory");
}

absl::Status Transport::Allocate(size_t size, bps_region** region, void** base) {
  if (!BPS_HAS_ENTRY(table_, allocate)) return absl::UnimplementedError("this transport allocates no memory");
  bps_failure failure;
  const int32_t code = table_->allocate(handle(), size, region, base, &failure);
  return code == BPS_OK ? absl::OkStatus()
                        : FailureStatus(code, failure, "allocating " + std::to_string(size) + " bytes of memory");
}

absl::Status Transport::RegShared(void* base, size_t size, int fd, bps_region** region) {
  if (!shares_) return Reg(base, size, region);
  bps_failure failure;
  const int32_t code = table_->reg_shared(handle(), base, size, fd, region, &failure);
  return code == BPS_OK
             ? absl::OkStatus()
             : FailureStatus(code, failure, "registering " + std::to_string(size) + " bytes of shared memory");
}

}  // namespace byteps
