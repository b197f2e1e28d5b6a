// region.h - owns one registration of memory with a transport.
//
//     absl::StatusOr<Region> region = Region::Make(&transport, base, size);
//     transport.ExportKey(region->get(), peer, key);
//
// Unregistered on destruction, which must come before that of the transport and before the memory is freed. Move-only.
#ifndef BYTEPS_CORE_PLUGIN_REGION_H_
#define BYTEPS_CORE_PLUGIN_REGION_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "core/plugin/transport.h"

namespace byteps {

class Region {
 public:
  static absl::StatusOr<Region> Make(Transport* transport, void* base, size_t size) {
    bps_region* handle = nullptr;
    absl::Status status = transport->Reg(base, size, &handle);
    if (!status.ok()) return status;
    return Region(transport, handle);
  }

  // Memory of a GPU.
  static absl::StatusOr<Region> MakeDevice(Transport* transport, const bps_device_memory& memory) {
    bps_region* handle = nullptr;
    absl::Status status = transport->RegDevice(memory, &handle);
    if (!status.ok()) return status;
    return Region(transport, handle);
  }

  // Memory that is a shared mapping of `fd`.
  static absl::StatusOr<Region> MakeShared(Transport* transport, void* base, size_t size, int fd) {
    bps_region* handle = nullptr;
    absl::Status status = transport->RegShared(base, size, fd, &handle);
    if (!status.ok()) return status;
    return Region(transport, handle);
  }

  // Memory of the transport's own, at *base; freed with the region.
  static absl::StatusOr<Region> Allocate(Transport* transport, size_t size, std::byte** base) {
    bps_region* handle = nullptr;
    void* memory = nullptr;
    absl::Status status = transport->Allocate(size, &handle, &memory);
    if (!status.ok()) return status;
    *base = static_cast<std::byte*>(memory);
    return Region(transport, handle);
  }

  Region() = default;
  Region(Region&& other) noexcept : transport_(other.transport_), handle_(std::exchange(other.handle_, nullptr)) {}
  Region& operator=(Region&& other) noexcept {
    std::swap(transport_, other.transport_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Region() {
    if (handle_ != nullptr) transport_->Unreg(handle_);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  bps_region* get() const { return handle_; }

 private:
  Region(Transport* transport, bps_region* handle) : transport_(transport), handle_(handle) {}

  Transport* transport_ = nullptr;
  bps_region* handle_ = nullptr;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_REGION_H_
