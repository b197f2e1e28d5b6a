// staged_collectives.h - collectives on memory of GPUs, by way of pinned memory of the host.
//
//     collectives.UseCopies(std::make_unique<StagedCollectives>(lanes, stock, log));
//
//     caller's stream ──ready──┐                                              ┌──finished──> caller's stream
//           copy of the input to the host ─> the round among workers ─> copy of the result to the device
//
// A round is held until what its caller's stream held at the submission has ended, and the input is on the host. When
// the result's copy is in the stream, a stream of the caller waits for it: the request is *enqueued*; when that has
// ended it is *done*. No call here blocks the host. Events are asked for at intervals, and only while something waits
// for one: nothing is asked while the network has the operation.
//
// Memory. Areas come from the session's stock when they are needed: that of a result when its size is known.
// Failure. As of the device stage: an operation ends when none of its copies is under way, or kReleaseTime after it was
//         given up.
//
// Threads: none; driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_DEVICE_STAGED_COLLECTIVES_H_
#define BYTEPS_CORE_WORKER_DEVICE_STAGED_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/worker/collectives/collective_copies.h"
#include "core/worker/device/gpu_lanes.h"
#include "core/worker/device/gpu_round.h"
#include "core/worker/device/pinned_area.h"
#include "core/worker/device/pinned_stock.h"

namespace byteps {

class StagedCollectives : public CollectiveCopies {
 public:
  static constexpr Time kReleaseTime = 2 * kSecond;
  // Of an input: what is behind one piece may still be overtaken.
  static constexpr uint64_t kPiece = uint64_t{1} << 20;

  StagedCollectives(std::shared_ptr<GpuLanes> lanes, std::shared_ptr<PinnedStock> stock, const Logger* log)
      : lanes_(std::move(lanes)), stock_(std::move(stock)), log_(log) {}
  ~StagedCollectives() override;

  void UseSink(CollectiveCopiesSink* sink) override { sink_ = sink; }
  void Begin(Time now, const Collective& asked, int32_t own_rank, Time deadline) override;
  absl::StatusOr<std::byte*> Output(const Request* request, uint64_t bytes) override;
  void End(Time now, const Collective& asked, const absl::Status& outcome) override;
  bool Hurry(Time now, const Request* request) override;
  bool Run(Time now) override;
  Time NextTimer() const override;
  size_t in_flight() const override { return ended_; }
  std::string DescribeWait(const Request* request) const override;
  void Stop() override;
  std::vector<std::shared_ptr<Request>> Disown() override;

 private:
  // One operation.
  struct Copies : CopySource {
    int64_t priority() const override { return urgency; }
    uint64_t order() const override { return place; }
    bool NextPiece(Piece* piece) override;
    void OnCopied(const absl::Status& status) override;
    void OnUntold(const absl::Status& status) override;

    std::shared_ptr<Request> request;
    std::shared_ptr<GpuRound> gpu;
    int64_t urgency = 0;
    uint64_t place = 0;                // among all copies
    uint64_t name = 0;                 // an odd number of what comes again
    const std::byte* input = nullptr;  // of the caller
    uint64_t bytes = 0;                // to be copied to the host; 0: none
    uint64_t taken = 0;                // of those: in the stream
    size_t copying = 0;                // pieces
    std::unique_ptr<PinnedArea> input_area, output_area;
    Time deadline = kNever;
    bool ready = false;    // its caller's work before it has ended
    bool told = false;     // the round goes on, or has been told why not
    bool ended = false;    // the round is over
    bool writing = false;  // a copy to the device is in the stream
    // A copy is in the stream whose end no event tells of.
    bool untold_input = false, untold_output = false;
    absl::Status broken;  // a failure here
    absl::Status outcome;
    std::string description;  // for people; of one whose result is in the stream
    Time release_at = kNever;

    bool copied() const { return ready && taken == bytes && copying == 0; }
  };

  Copies* Find(const Request* request) const;
  bool LookForReady();
  absl::Status StartInput(Copies* copies);
  bool TellRounds();
  // Its first failure, behind its round.
  static void Fail(Copies* copies, const absl::Status& why);
  absl::Status StartResult(const Collective& asked, Copies* copies);
  bool LookForEnds();
  // True: it is over, and forgotten.
  bool MaybeLeave(Copies* copies);
  void Leave(Copies* copies);

  const std::shared_ptr<GpuLanes> lanes_;
  const std::shared_ptr<PinnedStock> stock_;
  const Logger* const log_;
  CollectiveCopiesSink* sink_ = nullptr;
  absl::flat_hash_map<const Request*, std::unique_ptr<Copies>> all_;
  std::vector<Copies*> order_;        // as they began
  std::vector<const Request*> tell_;  // kept for its memory
  BusyStreams busy_;
  size_t ended_ = 0;
  Time now_ = 0;
  PollPace pace_;
  bool stopped_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_STAGED_COLLECTIVES_H_
