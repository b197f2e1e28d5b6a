#include "core/plugin/gpu.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/plugin/plugin_check.h"

namespace byteps {

// Is an optional entry within the table that the plugin was compiled with, and set?
#define BPS_HAS_ENTRY(entry) \
  (table_->struct_size >= offsetof(bps_device_table, entry) + sizeof table_->entry && table_->entry != nullptr)

std::string Gpu::TitleOf(const bps_device_plugin& plugin) {
  return absl::StrCat("device plugin \"", plugin.info.name, "\"");
}

Gpu::Gpu(const bps_device_plugin& plugin, bps_device* handle, int32_t index, std::string name, std::string pci)
    : table_(plugin.table),
      handle_(handle),
      index_(index),
      name_(std::move(name)),
      pci_(std::move(pci)),
      title_(TitleOf(plugin)),
      collectives_(DeviceCollectives(plugin)) {}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const bps_device_plugin& plugin, int32_t index,
                                               const PluginConfig* config, const Logger* log) {
  const std::string title = TitleOf(plugin);
  bps_device_facts facts = {};
  facts.struct_size = sizeof facts;
  const int32_t asked = WatchedCall(title, "facts", [&] { return plugin.facts(config, index, &facts, nullptr); });
  const bool known = asked == BPS_OK && facts.name != nullptr;
  std::string name = absl::StrCat("GPU ", index, known ? absl::StrCat(" (", facts.name, ")") : "");
  bps_device_open_args args = {};
  args.struct_size = sizeof args;
  args.config = config;
  args.log = const_cast<Logger*>(log);
  args.index = index;
  bps_device* handle = nullptr;
  bps_failure failure;
  const int32_t code = WatchedCall(title, "open", [&] { return plugin.table->open(&args, &handle, &failure); });
  if (code != BPS_OK) return FailureStatus(code, failure, absl::StrCat(name, " could not be opened"));
  if (handle == nullptr) {
    return absl::InternalError(absl::StrCat(title, " answered open with success and no device"));
  }
  return std::unique_ptr<Gpu>(
      new Gpu(plugin, handle, index, std::move(name), known && facts.pci != nullptr ? facts.pci : ""));
}

Gpu::~Gpu() {
  Watched("close", [&] { table_->close(handle_); });
}

template <typename Function>
absl::Status Gpu::Call(const char* verb, const char* what, const Function& function) {
  bps_failure failure;
  const int32_t code = Watched(verb, [&] { return function(&failure); });
  if (code == BPS_OK) return absl::OkStatus();
  return FailureStatus(code, failure, absl::StrCat(name_, ": ", what));
}

absl::StatusOr<void*> Gpu::Allocate(uint64_t size) {
  void* base = nullptr;
  absl::Status status = Call("allocate", "allocating device memory",
                             [&](bps_failure* failure) { return table_->allocate(handle_, size, &base, failure); });
  if (!status.ok()) return status;
  return base;
}

absl::Status Gpu::Release(void* base) {
  return Call("release", "giving device memory back",
              [&](bps_failure* failure) { return table_->release(handle_, base, failure); });
}

absl::StatusOr<void*> Gpu::AllocateHost(uint64_t size) {
  void* base = nullptr;
  absl::Status status =
      Call("allocate_host", absl::StrCat("allocating ", size, " bytes of pinned memory").c_str(),
           [&](bps_failure* failure) { return table_->allocate_host(handle_, size, &base, failure); });
  if (!status.ok()) return status;
  return base;
}

absl::Status Gpu::ReleaseHost(void* base) {
  return Call("release_host", "giving pinned memory back",
              [&](bps_failure* failure) { return table_->release_host(handle_, base, failure); });
}

absl::Status Gpu::RegisterHost(void* base, uint64_t size) {
  return Call("register_host", "pinning host memory",
              [&](bps_failure* failure) { return table_->register_host(handle_, base, size, failure); });
}

absl::Status Gpu::UnregisterHost(void* base) {
  return Call("unregister_host", "unpinning host memory",
              [&](bps_failure* failure) { return table_->unregister_host(handle_, base, failure); });
}

absl::StatusOr<bps_device_pointer> Gpu::Pointer(const void* address) {
  bps_device_pointer pointer = {};
  pointer.struct_size = sizeof pointer;
  absl::Status status = Call("pointer", "asking what an address is", [&](bps_failure* failure) {
    return table_->pointer(handle_, address, &pointer, failure);
  });
  if (!status.ok()) return status;
  return pointer;
}

absl::StatusOr<bps_device_stream> Gpu::StreamCreate(int32_t urgent) {
  bps_device_stream stream = nullptr;
  absl::Status status = Call("stream_create", "making a stream", [&](bps_failure* failure) {
    return table_->stream_create(handle_, urgent, &stream, failure);
  });
  if (!status.ok()) return status;
  return stream;
}

absl::Status Gpu::StreamDestroy(bps_device_stream stream) {
  return Call("stream_destroy", "destroying a stream",
              [&](bps_failure* failure) { return table_->stream_destroy(handle_, stream, failure); });
}

absl::StatusOr<bps_device_stream_state> Gpu::StreamState(bps_device_stream stream) {
  bps_device_stream_state state = {};
  state.struct_size = sizeof state;
  absl::Status status = Call("stream_state", "asking for the state of a stream", [&](bps_failure* failure) {
    return table_->stream_state(handle_, stream, &state, failure);
  });
  if (!status.ok()) return status;
  return state;
}

absl::Status Gpu::StreamWait(bps_device_stream stream, bps_device_event* event) {
  return Call("stream_wait", "making a stream wait",
              [&](bps_failure* failure) { return table_->stream_wait(handle_, stream, event, failure); });
}

absl::StatusOr<bps_device_event*> Gpu::EventCreate() {
  bps_device_event* event = nullptr;
  absl::Status status = Call("event_create", "making an event",
                             [&](bps_failure* failure) { return table_->event_create(handle_, &event, failure); });
  if (!status.ok()) return status;
  return event;
}

void Gpu::EventDestroy(bps_device_event* event) {
  Watched("event_destroy", [&] { table_->event_destroy(handle_, event, nullptr); });
}

absl::Status Gpu::EventRecord(bps_device_event* event, bps_device_stream stream) {
  return Call("event_record", "recording an event",
              [&](bps_failure* failure) { return table_->event_record(handle_, event, stream, failure); });
}

absl::StatusOr<bool> Gpu::EventQuery(bps_device_event* event) {
  bool ready = false;
  absl::Status status = Call("event_query", "asking for an event", [&](bps_failure* failure) {
    const int32_t code = table_->event_query(handle_, event, failure);
    ready = code == BPS_OK;
    return code == BPS_DEVICE_NOT_READY ? BPS_OK : code;
  });
  if (!status.ok()) return status;
  return ready;
}

absl::Status Gpu::CopyToHost(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  return Call("copy_to_host", "copying to the host",
              [&](bps_failure* failure) { return table_->copy_to_host(handle_, to, from, size, stream, failure); });
}

absl::Status Gpu::CopyToDevice(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  return Call("copy_to_device", "copying to the device",
              [&](bps_failure* failure) { return table_->copy_to_device(handle_, to, from, size, stream, failure); });
}

absl::Status Gpu::CopyWithin(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  return Call("copy_within", "copying within the device",
              [&](bps_failure* failure) { return table_->copy_within(handle_, to, from, size, stream, failure); });
}

absl::Status Gpu::Fill(void* to, uint8_t byte, uint64_t size, bps_device_stream stream) {
  return Call("fill", "filling memory",
              [&](bps_failure* failure) { return table_->fill(handle_, to, byte, size, stream, failure); });
}

absl::Status Gpu::Synchronize(bps_device_stream stream) {
  return Call("synchronize", "waiting for a stream",
              [&](bps_failure* failure) { return table_->synchronize(handle_, stream, failure); });
}

absl::Status Gpu::Fold(void* to, std::span<const void* const> sources, uint64_t count, uint32_t dtype,
                       int32_t reduction, bps_device_stream stream) {
  if (!BPS_HAS_ENTRY(fold)) {
    return absl::UnimplementedError(name_ + ": its plugin has no kernel that folds in the order of the ranks");
  }
  return Call("fold", "folding in the order of the ranks", [&](bps_failure* failure) {
    return table_->fold(handle_, to, sources.data(), static_cast<uint32_t>(sources.size()), count, dtype, reduction,
                        stream, failure);
  });
}

absl::Status Gpu::Convert(void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype, uint64_t count,
                          double factor, bps_device_stream stream) {
  if (!BPS_HAS_ENTRY(convert)) {
    return absl::UnimplementedError(name_ + ": its plugin has no kernel that scales or casts");
  }
  return Call("convert", "scaling or casting", [&](bps_failure* failure) {
    return table_->convert(handle_, to, to_dtype, from, from_dtype, count, factor, stream, failure);
  });
}

absl::Status Gpu::FlushRemote() {
  if (!BPS_HAS_ENTRY(flush_remote)) {
    return absl::UnimplementedError(name_ + ": its plugin lets no network card at its memory");
  }
  return Call("flush_remote", "waiting for what network cards have written",
              [&](bps_failure* failure) { return table_->flush_remote(handle_, failure); });
}

absl::StatusOr<UniqueFd> Gpu::DmaBuf(void* base, uint64_t size) {
  if (!BPS_HAS_ENTRY(dmabuf)) return absl::UnimplementedError(name_ + ": its plugin makes no dma-buf");
  int32_t descriptor = -1;
  absl::Status status = Call("dmabuf", "making a dma-buf", [&](bps_failure* failure) {
    return table_->dmabuf(handle_, base, size, &descriptor, failure);
  });
  if (!status.ok()) return status;
  return UniqueFd(descriptor);
}

}  // namespace byteps
