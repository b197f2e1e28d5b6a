// device_stage.h - the first step of tensors in device memory: out of the GPU into pinned memory of the host, part by
// part, and back.
//
//     engine.UseStage("", std::make_unique<DeviceStage>(lanes, stock, log));   // before all others, at any time
//
//     caller's stream ──ready──┐                                          ┌──finished──> caller's stream
//         copy of a part to the host ─> next stage ... ─> copy of a part to the device
//
// An operation waits until what its caller's stream held at the submission has ended; then its parts are copied to the
// host, the most urgent operation first, a few at a time. Each goes on to the next stage as soon as it is there.
// Results are copied back as they come. When all copies are in the stream, a stream of the caller waits for them: the
// request is *enqueued*, and the next operation on the tensor may be submitted. When they have ended it is *done*.
//
// No call here blocks the host, or the caller's stream longer than its result takes. Events are asked for at intervals
// (PollPace).
//
// Memory. Each tensor has one area of pinned memory for input and result, taken with its first operation. One whose
//         tensor has been used once, and not for PinnedStock::KeepTime, goes to the tensor that needs one next.
// Scale.  The factors of an operation (Submission::prescale) are applied by the GPU, on the way to the host and back:
//         a kernel takes the place of the copy, and reads or writes the pinned memory itself. Without such a kernel the
//         host multiplies: the input behind its copy, the result before its own. The bits are the same.
// Cast.   Likewise elements of another data type than the tensor's (Submission::memory_dtype), by the GPU alone.
// Failure. An operation ends when none of its copies is under way, or kReleaseTime after it was given up: behind work
//         of the caller that never ends a copy never begins.
// Direct. Where the next stage takes memory of the GPU as it is (a network card that reads and writes it), parts go on
//         as soon as the caller's stream has got there, nothing is copied, and no pinned memory is made. The stream of
//         the caller waits as above.
// Operations without device memory pass by.
//
// Threads: none; called by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_DEVICE_DEVICE_STAGE_H_
#define BYTEPS_CORE_WORKER_DEVICE_DEVICE_STAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/log.h"
#include "core/plugin/gpu.h"
#include "core/worker/device/gpu_lanes.h"
#include "core/worker/device/gpu_round.h"
#include "core/worker/device/pinned_area.h"
#include "core/worker/device/pinned_stock.h"
#include "core/worker/memory/buffer.h"
#include "core/worker/tensor/relay_stage.h"

namespace byteps {

class DeviceStage : public RelayStage {
 public:
  static constexpr Time kReleaseTime = 2 * kSecond;

  DeviceStage(std::shared_ptr<GpuLanes> lanes, std::shared_ptr<PinnedStock> stock, const Logger* log)
      : lanes_(std::move(lanes)), stock_(std::move(stock)), log_(log) {}
  ~DeviceStage() override;

  const char* name() const override { return "device"; }
  // Of an operation that passes by.
  bool TakesDevice(const Operation& operation, const Areas& areas) override {
    return operation.by_gpus && next()->TakesDevice(operation, areas);
  }
  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override;
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Withdraw(Time now, Operation* operation, const absl::Status& why) override;
  void Drop(Operation* operation) override;
  void Stop() override;
  bool Run(Time now) override;
  Time NextTimer() const override;
  std::string WhoIsMissing(const Operation& operation) const override;

  void OnPartHome(Operation* operation, uint32_t part, const Payload& result) override;
  void OnGivingUp(Operation* operation, const absl::Status& why, bool told) override;
  void OnStageDone(Operation* operation, const absl::Status& outcome) override;

 private:
  struct Part {
    uint32_t part;
    Payload source;  // on the host
    Payload target;
    const std::byte* from;  // on the device; nullptr: nothing to copy
  };
  // One operation.
  struct Round : CopySource {
    explicit Round(DeviceStage* owner) : stage(owner) {}
    int64_t priority() const override { return operation->asked.priority; }
    uint64_t order() const override { return place; }
    bool NextPiece(Piece* piece) override { return stage->NextPiece(this, piece); }
    void OnCopied(const absl::Status& status) override { stage->OnCopied(this, status); }
    void OnUntold(const absl::Status& status) override {
      untold = true;
      stage->OnCopied(this, status);
    }

    DeviceStage* stage;
    Operation* operation = nullptr;
    uint64_t place = 0;  // among all copies
    std::shared_ptr<GpuRound> gpu;
    Areas asked, host;
    PartRange range;
    std::vector<Part> parts;  // pushed, in this order
    size_t started = 0;       // of those: on their way
    size_t copying = 0;       // copies to the host under way
    bool direct = false;      // the next stage takes the memory of the GPU; nothing is copied
    bool ready = false;       // its caller's work before it has ended
    bool begun = false;       // by the next stage
    bool through = false;     // the next stage is
    bool wrote = false;       // a copy to the device is in the stream
    bool finishing = false;   // waits for `finished`
    bool untold = false;      // a copy is in a stream whose end no event tells of
    bool ended = false;
    bool has_area = false;
    // The GPU multiplies or casts on the way.
    bool converts_input = false, converts_result = false;
    absl::Status broken;   // a failure here that the next stage is to hear of
    absl::Status outcome;  // why it is given up
    Time release_at = kNever;
  };
  // Pinned memory of a tensor, and the last round whose result may still be copied out of it.
  struct Area {
    std::unique_ptr<PinnedArea> memory;
    std::shared_ptr<GpuRound> last;
    int32_t rounds = 0;  // that use it now
    bool again = false;  // its tensor has been used more than once
    Time used_at = 0;
  };

  Round* Find(Operation* operation) const;
  std::unique_ptr<Round> NewRound();
  absl::Status PlaceOnHost(Round* round);
  bool Converts(const Round& round, const std::shared_ptr<Gpu>& gpu, bool scales) const;
  bool GoesDirect(Round* round);
  absl::StatusOr<Area*> AreaOf(Round* round);
  void GiveBackIdle();
  // The result has come by a way of the host's, and lies elsewhere.
  absl::Status CopyHome(Round* round, uint32_t part, const Payload& result);

  bool LookForReady();
  absl::StatusOr<bool> AreaReady(const Round& round);
  void Start(Round* round);
  void Go(Round* round, const Part& part);
  bool NextPiece(Round* round, CopySource::Piece* piece);
  void OnCopied(Round* round, const absl::Status& status);
  bool TellBroken();
  // The next stage is through with it.
  void Conclude(Round* round);
  absl::Status FinishResult(Round* round);
  bool LookForEnds();
  void GiveUp(Round* round, const absl::Status& why);
  void Forget(Round* round);

  const std::shared_ptr<GpuLanes> lanes_;
  const std::shared_ptr<PinnedStock> stock_;
  const Logger* const log_;
  absl::flat_hash_map<Operation*, std::unique_ptr<Round>> rounds_;
  std::vector<std::unique_ptr<Round>> spare_;
  std::vector<Round*> order_;  // as they began
  BusyStreams busy_;
  absl::flat_hash_map<const Tensor*, Area> areas_;
  Time now_ = 0;
  Time looked_at_ = 0;  // for idle areas
  PollPace pace_;
  bool stopped_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_DEVICE_STAGE_H_
