// buffer_regions.h - the registrations of the library's own buffers with one transport: made at the first use of a
// buffer, kept until it is freed.
//
//     BufferRegions regions(&transport);
//     absl::StatusOr<BufferRegions::Place> place = regions.Find(request.input_buffer(), input, bytes);
//     if (place->region == nullptr) ... register it for this operation
//     regions.DropFreed();          // from time to time, once Free was called
//     regions.Drop(buffer);         // the fence: no peer reaches it any more
//
// A freed buffer's memory goes when the last of these lets go of it.
//
// Threads: those of the transport. Destroyed before it.
#ifndef BYTEPS_CORE_WORKER_MEMORY_BUFFER_REGIONS_H_
#define BYTEPS_CORE_WORKER_MEMORY_BUFFER_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/plugin/region.h"
#include "core/plugin/transport.h"
#include "core/worker/memory/buffer.h"

namespace byteps {

class BufferRegions {
 public:
  // Memory within a registration.
  struct Place {
    bps_region* region = nullptr;  // nullptr: not in a buffer
    uint64_t offset = 0;
  };

  explicit BufferRegions(Transport* transport) : transport_(transport) {}

  // Where [at, at + bytes) lies; nowhere if `buffer` is nullptr or does not hold all of it.
  absl::StatusOr<Place> Find(const std::shared_ptr<Buffer>& buffer, const void* at, size_t bytes);
  void Drop(const std::shared_ptr<Buffer>& buffer) { regions_.erase(buffer); }
  void DropFreed() {
    absl::erase_if(regions_, [](const auto& each) { return each.first->freed(); });
  }
  void Clear() { regions_.clear(); }
  size_t size() const { return regions_.size(); }

 private:
  Transport* const transport_;
  // An entry's region goes before its buffer: it is the second of the pair.
  absl::flat_hash_map<std::shared_ptr<Buffer>, Region> regions_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_MEMORY_BUFFER_REGIONS_H_
