// staging_pool.h - memory that every process of the host can reach, for those whose own memory the others cannot.
//
//     StagingPool pool(&transport);
//     absl::StatusOr<Staging> staging = pool.Take(bytes);
//     std::memcpy(staging->base, input, bytes);  transport.ExportKey(staging->region.get(), ...) ...
//     pool.Return(std::move(*staging));           // once no process touches it any more; else let it go
//
// Blocks are used again: their pages are warm, and peers have mapped them already.
//
// Threads: none.
#ifndef BYTEPS_CORE_WORKER_MEMORY_STAGING_POOL_H_
#define BYTEPS_CORE_WORKER_MEMORY_STAGING_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "core/plugin/region.h"
#include "core/plugin/transport.h"

namespace byteps {

// A block; unregistered when it goes.
struct Staging {
  Region region;
  std::byte* base = nullptr;
  size_t size = 0;
};

class StagingPool {
 public:
  // What is kept although it is not used.
  static constexpr uint64_t kIdleBytes = uint64_t{512} << 20;

  explicit StagingPool(Transport* transport) : transport_(transport) {}

  // At least `bytes`.
  absl::StatusOr<Staging> Take(size_t bytes);
  void Return(Staging staging);

 private:
  Transport* const transport_;
  std::multimap<size_t, Staging> idle_;  // by size
  uint64_t idle_bytes_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_MEMORY_STAGING_POOL_H_
