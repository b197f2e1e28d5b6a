#include "core/plugin/plugin_transport.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
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

// What has no meaning for a plugin may be anything.
void ForgetWhy(bps_event* events, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (events[i].type == BPS_EVENT_PEER_DOWN) events[i].size = 0;
  }
}

}  // namespace

PluginTransport::PluginTransport(const bps_transport_table* table, bps_transport* handle)
    : table_(table), handle_(handle, Closer{table}) {
  caps_.struct_size = sizeof caps_;
  table_->caps(handle, &caps_);
  // A capability without its function is none.
  if (!BPS_HAS_ENTRY(table, post_read)) caps_.flags &= ~BPS_TRANSPORT_READ;
  if (!BPS_HAS_ENTRY(table, map_remote)) caps_.flags &= ~BPS_TRANSPORT_MAP_REMOTE;
  if (!BPS_HAS_ENTRY(table, copy_from) || !BPS_HAS_ENTRY(table, copy_to)) caps_.flags &= ~BPS_TRANSPORT_COPY;
  if (!BPS_HAS_ENTRY(table, wait_fd) || !BPS_HAS_ENTRY(table, arm)) caps_.flags &= ~BPS_TRANSPORT_WAIT_FD;
  if (!BPS_HAS_ENTRY(table, reg_device)) caps_.flags &= ~BPS_TRANSPORT_CUDA;
  shares_ = BPS_HAS_ENTRY(table, reg_shared);
  unmaps_ = BPS_HAS_ENTRY(table, unmap_remote);
  writes_ = BPS_HAS_ENTRY(table, begin_write) && BPS_HAS_ENTRY(table, end_write);
  sends_and_writes_ = BPS_HAS_ENTRY(table, post_send_and_write);
}

absl::StatusOr<std::unique_ptr<PluginTransport>> PluginTransport::Open(const bps_transport_plugin& plugin,
                                                                       const bps_transport_open_args& args,
                                                                       PluginCalls* calls) {
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
  auto transport = std::make_unique<PluginTransport>(plugin.table, handle);
  transport->says_why_ = plugin.info.abi_minor >= 1;
  if (absl::Status status = CheckCaps(subject, transport->caps()); !status.ok()) return status;
  transport->calls_ = calls;
  transport->title_ = subject;
  transport->audit_ = std::make_unique<TransportAudit>(subject);
  return transport;
}

absl::Status PluginTransport::CheckCaps(const std::string& subject, const bps_transport_caps& caps) {
  const auto error = [&](const char* field, uint64_t value, const char* bound, uint64_t limit) {
    return absl::InternalError(absl::StrCat(subject, " has the capability ", field, " = ", value,
                                            "; abi/transport.h demands ", bound, " ", limit));
  };
  if (caps.immediate_bits < 24) return error("immediate_bits", caps.immediate_bits, "at least", 24);
  if (caps.max_message < 16384) return error("max_message", caps.max_message, "at least", 16384);
  if (caps.receive_pool < 16) return error("receive_pool", caps.receive_pool, "at least", 16);
  if (caps.max_transfer == 0) return error("max_transfer", caps.max_transfer, "at least", 1);
  if (caps.key_size > BPS_TRANSPORT_MAX_KEY) {
    return error("key_size", caps.key_size, "at most", BPS_TRANSPORT_MAX_KEY);
  }
  return absl::OkStatus();
}

void PluginTransport::Thrown(const char* verb) {
  try {
    throw;
  } catch (const std::exception& error) {
    audit_->Break(absl::StrCat("threw an exception in ", verb, ": ", error.what()));
  } catch (...) {
    audit_->Break(absl::StrCat("threw an exception in ", verb));
  }
}

absl::Status PluginTransport::Registered(const char* verb, const bps_region* region) {
  if (region != nullptr) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(title_, " answered ", verb, " with success and no region. It is a defect of the plugin"));
}

int32_t PluginTransport::Disconnect(bps_peer peer) {
  const bool broken = audit_ != nullptr && audit_->OnDisconnect(peer);
  const int32_t code = Watched("disconnect", [&] { return table_->disconnect(handle(), peer); });
  return broken ? BPS_OK : code;
}

absl::StatusOr<std::string> PluginTransport::Address() {
  std::string address(BPS_TRANSPORT_MAX_ADDRESS, '\0');
  size_t size = address.size();
  bps_failure failure;
  const int32_t code = Watched("address", [&] { return table_->address(handle(), address.data(), &size, &failure); });
  if (code != BPS_OK) return FailureStatus(code, failure, "own transport address");
  address.resize(std::min(size, address.size()));
  return address;
}

absl::Status PluginTransport::Connect(const bps_connect_args& args) {
  bps_failure failure;
  const int32_t code = Watched("connect", [&] { return table_->connect(handle(), &args, &failure); });
  if (code != BPS_OK) return FailureStatus(code, failure, "");  // callers name the peer
  if (audit_ != nullptr) audit_->OnConnected(args.peer);
  return absl::OkStatus();
}

absl::Status PluginTransport::Reg(void* base, size_t size, bps_region** region) {
  bps_failure failure;
  *region = nullptr;
  const int32_t code = Watched("reg", [&] { return table_->reg(handle(), base, size, region, &failure); });
  return code == BPS_OK ? Registered("reg", *region)
                        : FailureStatus(code, failure, "registering " + std::to_string(size) + " bytes of memory");
}

absl::Status PluginTransport::RegDevice(const bps_device_memory& memory, bps_region** region) {
  if ((caps_.flags & BPS_TRANSPORT_CUDA) == 0) return absl::UnimplementedError("this transport reads no GPU's memory");
  bps_failure failure;
  *region = nullptr;
  const int32_t code = Watched("reg_device", [&] { return table_->reg_device(handle(), &memory, region, &failure); });
  return code == BPS_OK ? Registered("reg_device", *region)
                        : FailureStatus(code, failure, absl::StrCat("registering ", memory.size, " bytes of a GPU"));
}

absl::Status PluginTransport::Allocate(size_t size, bps_region** region, void** base) {
  if (!BPS_HAS_ENTRY(table_, allocate)) return absl::UnimplementedError("this transport allocates no memory");
  bps_failure failure;
  *region = nullptr;
  const int32_t code = Watched("allocate", [&] { return table_->allocate(handle(), size, region, base, &failure); });
  return code == BPS_OK ? Registered("allocate", *region)
                        : FailureStatus(code, failure, "allocating " + std::to_string(size) + " bytes of memory");
}

absl::Status PluginTransport::RegShared(void* base, size_t size, int fd, bps_region** region) {
  if (!shares_) return Reg(base, size, region);
  bps_failure failure;
  *region = nullptr;
  const int32_t code =
      Watched("reg_shared", [&] { return table_->reg_shared(handle(), base, size, fd, region, &failure); });
  return code == BPS_OK
             ? Registered("reg_shared", *region)
             : FailureStatus(code, failure, "registering " + std::to_string(size) + " bytes of shared memory");
}

size_t PluginTransport::Poll(bps_event* events, size_t capacity) {
  if (audit_ == nullptr) return table_->poll(handle(), events, capacity);
  size_t answered = 0;
  if (!audit_->broken()) {
    try {
      answered = Watched("poll", [&] { return table_->poll(handle(), events, capacity); });
    } catch (...) {
      Thrown("poll");
    }
  }
  if (!says_why_) ForgetWhy(events, std::min(answered, capacity));
  return audit_->Check(events, answered, capacity);
}

}  // namespace byteps
