// gpu_lanes.h - the library's own streams on each GPU of a session, and the copies out of GPUs that are in them, of
// tensors and of collectives alike: the most urgent first, a few at a time, so that a more urgent one overtakes the
// rest.
//
//     auto lanes = std::make_shared<GpuLanes>(gpus);
//     absl::StatusOr<GpuLane*> lane = lanes->Get(gpu);          // makes its streams, once
//     lane->opened.gpu->CopyToDevice(to, from, bytes, lane->to_device);
//     lanes->Add(lane, &source);                                // it has pieces to be copied to the host
//     lanes->Run();                                             // source.OnCopied(status), for each piece
//
// No call blocks the host, but Drain. Who waits for a copy or for a caller's stream asks at intervals (PollPace).
//
// Threads: none; called by the thread that drives the engine. Ownership: sources must Forget what they have added.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_LANES_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_LANES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "abi/device.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time.h"
#include "core/plugin/gpu.h"
#include "core/worker/device/gpu_events.h"
#include "core/worker/device/gpus.h"

namespace byteps {

// Bytes of one GPU that are wanted on the host, piece by piece.
class CopySource {
 public:
  struct Piece {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;  // on the host
    // Elements that are multiplied and cast on their way; 0: the bytes are copied as they are.
    uint64_t elements = 0;
    uint32_t to_dtype = 0, from_dtype = 0;
    double factor = 1;
  };
  virtual ~CopySource() = default;
  // Larger is sooner; of equal ones, the smaller order (GpuLanes::NextOrder).
  virtual int64_t priority() const = 0;
  virtual uint64_t order() const = 0;
  // Its next piece. False: it has none, until it is added again.
  virtual bool NextPiece(Piece* piece) = 0;
  // The oldest piece under way is on the host. Not OK: it never will be.
  virtual void OnCopied(const absl::Status& status) = 0;
  // The latest piece is under way, but nothing will tell when it is on the host: the memory is touched until then.
  virtual void OnUntold(const absl::Status& status) = 0;
};

// What belongs to one GPU.
struct GpuLane {
  Gpus::Opened opened;
  bps_device_stream to_host = nullptr;
  bps_device_stream to_device = nullptr;

  struct Copy {
    CopySource* source;  // nullptr: nothing waits for it
    uint64_t bytes;
    GpuEvent copied;
  };
  std::deque<Copy> flying;  // in the order of the stream
  uint64_t bytes_flying = 0;
  std::vector<CopySource*> waiting;
};

class GpuLanes {
 public:
  // Copies to the host that are in a stream at once, and their bytes: what is behind them may still be overtaken.
  static constexpr size_t kCopiesAhead = 16;
  static constexpr uint64_t kBytesAhead = uint64_t{8} << 20;

  explicit GpuLanes(std::shared_ptr<Gpus> gpus) : gpus_(std::move(gpus)) {}
  ~GpuLanes();
  GpuLanes(const GpuLanes&) = delete;
  GpuLanes& operator=(const GpuLanes&) = delete;

  absl::StatusOr<GpuLane*> Get(const std::shared_ptr<Gpu>& gpu);
  // One that Get has made.
  GpuLane& Of(const Gpu& gpu) { return lanes_.at(gpu.index()); }
  // The place of an operation that begins now behind all that have begun, of whatever kind.
  uint64_t NextOrder() { return ++last_order_; }
  // Also one that has been added.
  void Add(GpuLane* lane, CopySource* source);
  // Neither asks `source` for pieces nor tells it of any more.
  void Forget(const CopySource* source);
  // Takes what has been copied, and starts what may be. True if anything happened.
  bool Run();
  // Waits until no copy to the host is under way. False: not until `until`.
  bool Drain(Time until);

 private:
  bool TakeCopied(GpuLane* lane);
  bool StartCopies(GpuLane* lane);
  void Start(GpuLane* lane, CopySource* source, const CopySource::Piece& piece);

  const std::shared_ptr<Gpus> gpus_;
  std::map<int32_t, GpuLane> lanes_;
  uint64_t last_order_ = 0;
};

// How long to wait before a GPU is asked again: briefly while something moves, else longer and longer.
class PollPace {
 public:
  static constexpr Time kLeast = 20'000;
  static constexpr Time kMost = 200'000;
  void Note(bool worked) { pace_ = worked ? kLeast : std::min(2 * pace_, kMost); }
  Time After(Time now) const { return byteps::After(now, pace_); }

 private:
  Time pace_ = kLeast;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_LANES_H_
