// pinned_stock.h - pinned areas of a session that nothing uses at present, for what needs one next. To pin memory takes
// long, and to give it back waits for the GPU: so areas are made once, and kept until the session ends.
//
//     absl::StatusOr<std::unique_ptr<PinnedArea>> area = stock.Take(now, gpu, bytes, owner);     // at least so large
//     stock.GiveBack(now, *std::move(area), owner);             // nothing is under way from or to it
//
// An owner that comes again finds the area that it has had: so what runs in a loop makes none after its first turn,
// whatever else runs beside it. An area that its owner has used once, and not for a while (KeepTime), is everybody's:
// so what is named anew each time does not make more and more. Sizes are rounded up by at most a quarter.
//
// Threads: none; belongs to the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_DEVICE_PINNED_STOCK_H_
#define BYTEPS_CORE_WORKER_DEVICE_PINNED_STOCK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/time.h"
#include "core/plugin/gpu.h"
#include "core/worker/device/pinned_area.h"
#include "core/worker/memory/buffer.h"

namespace byteps {

class PinnedStock {
 public:
  // How long an area that was used once is kept for its owner, where there are so many of these. Many are no loop's
  // first turn, more likely names that do not come again.
  static Time KeepTime(size_t used_once) { return used_once <= kFew ? 10 * kSecond : kLookTime; }
  static constexpr size_t kFew = 256;
  // Between two looks for such areas.
  static constexpr Time kLookTime = kSecond / 10;

  explicit PinnedStock(std::shared_ptr<BufferTable> buffers) : buffers_(std::move(buffers)) {}
  PinnedStock(const PinnedStock&) = delete;
  PinnedStock& operator=(const PinnedStock&) = delete;

  // `owner`: a number of whoever takes it; 0: nobody who comes again. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<std::unique_ptr<PinnedArea>> Take(Time now, const std::shared_ptr<Gpu>& gpu, uint64_t bytes,
                                                   uint64_t owner);
  void GiveBack(Time now, std::unique_ptr<PinnedArea> area, uint64_t owner);
  // A copy that nothing waits for any more may still be under way: it is kept, and never used again.
  void PutAside(std::unique_ptr<PinnedArea> area) { aside_.push_back(std::move(area)); }

  // What an area for so many bytes has.
  static uint64_t Rounded(uint64_t bytes);

 private:
  struct Idle {
    std::unique_ptr<PinnedArea> area;
    Time since;
  };
  using Key = std::tuple<int32_t, uint64_t, uint64_t>;  // GPU, owner (0: none), bytes

  std::unique_ptr<PinnedArea> Find(int32_t gpu, uint64_t rounded, uint64_t owner);
  void Release(Time now);

  const std::shared_ptr<BufferTable> buffers_;
  std::multimap<Key, Idle> idle_;
  std::vector<std::unique_ptr<PinnedArea>> aside_;
  Time released_at_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_PINNED_STOCK_H_
