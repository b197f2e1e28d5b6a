// gpu_group_stage.h - the step among the GPUs of a host: they reduce by the collectives of the device plugin, each
// takes its share to the servers, and they gather the results.
//
//     engine.UseStage("", std::make_unique<GpuGroupStage>(options, gpus, stock, local, log));   // before the others
//
//                 reduce-scatter        copy to the host       copy to the GPU        all-gather
//     GPU memory ────────────────> own share ────> push, result ────> own share ────────────────> GPU memory
//
// One host alone: an all-reduce, and nothing else. Which memory each member has is not known before it submits, so the
// way of a round is agreed on:
//
//   1. When what the caller's stream held has ended, a member sends every other an OFFER: with its GPU, or not. A
//      member that submits CPU memory does so as soon as it hears of the round.
//   2. The first member of the host orders what all do, in one sequence: "through the host" if a member has no GPU (the
//      round goes to the next stage, and on as if this one was not there), else the rows of parts to be reduced, the
//      most urgent tensor first, a few groups ahead; and each row's gathering, when all its owners have said that its
//      parts are home. So collectives meet in the same order on all GPUs.
//   3. A member that cannot go on tells the first one, which orders the end of the round for all. Where this crosses
//      an operation that has passed by, or the order "through the host", the local stage ends the round
//      (LocalStage::EndRound).
//
// In the deterministic mode a row is not reduced by a collective: all send each part to its owner, which folds them in
// the order of the members by Gpu::Fold.
//
// What goes on to the next stage is the host's contribution: Operation::by_gpus; the parts that this member owns.
//
// Memory.  Each tensor has one area of pinned memory for the own parts, as in the device stage: taken with its first
//          operation, and the next tensor's if it has been used once, and not for PinnedStock::KeepTime.
// Failure. A round that is given up ends when nothing of it is under way in a stream. A collective that does not end
//          within kReleaseTime, or cannot begin, is the end of the session: the others are somewhere inside it.
//
// Threads: none; called by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_GROUP_STAGE_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_GROUP_STAGE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/log.h"
#include "core/plugin/gpu_comm.h"
#include "core/worker/device/gpu_events.h"
#include "core/worker/device/gpu_group_options.h"
#include "core/worker/device/gpu_records.h"
#include "core/worker/device/gpu_round.h"
#include "core/worker/device/gpu_rows.h"
#include "core/worker/device/gpus.h"
#include "core/worker/device/pinned_area.h"
#include "core/worker/device/pinned_stock.h"
#include "core/worker/local/local_stage.h"
#include "core/worker/tensor/relay_stage.h"

namespace byteps {

class GpuGroupStage : public RelayStage {
 public:
  static constexpr Time kLeastPoll = 20'000;
  static constexpr Time kMostPoll = 200'000;
  static constexpr Time kReleaseTime = 2 * kSecond;
  static constexpr size_t kGroupsAhead = 8;

  GpuGroupStage(GpuGroupOptions options, std::shared_ptr<Gpus> gpus, std::shared_ptr<PinnedStock> stock,
                LocalStage* local, const Logger* log);
  ~GpuGroupStage() override;

  const char* name() const override { return "gpus"; }
  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override;
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Withdraw(Time now, Operation* operation, const absl::Status& why) override { Abort(now, operation, why); }
  void Drop(Operation* operation) override;
  void Stop() override;
  bool Run(Time now) override;
  Time NextTimer() const override;
  void OnAssigned(Tensor* tensor, std::span<const Tensor::Owed> given_up) override;
  std::string WhoIsMissing(const Operation& operation) const override;

  void OnPartHome(Operation* operation, uint32_t part, const Payload& result) override;
  void OnGivingUp(Operation* operation, const absl::Status& why, bool told) override;
  void OnStageDone(Operation* operation, const absl::Status& outcome) override;

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // name, round
  enum class Way { kAsked, kHost, kGpus, kEnded };
  struct Part {
    uint32_t part;
    Payload source, target;
  };
  struct Report {
    bool offered = false, able = false;
    uint64_t fingerprint = 0, device = 0, options = 0;
    std::string why;
  };
  // This worker's operation in a round.
  struct Own {
    Operation* operation = nullptr;
    std::shared_ptr<GpuRound> gpu;  // nullptr: CPU memory, in a round that has ended
    Areas asked;
    PartRange range;
    std::vector<Part> parts;             // pushed
    std::optional<std::string> why_not;  // it cannot be one of GPUs; empty: it can; without a value: not asked yet
    bool offered = false;
    bool begun = false;             // by the next stage
    bool direct = false;            // which takes the memory of the GPU
    bool through = true;            // the next stage is
    uint32_t rows = 0;              // to be reduced or gathered still
    uint64_t area_bytes = 0;        // of the own parts
    std::vector<uint64_t> offsets;  // of each part in the pinned area; own parts only
    bool has_area = false;
    size_t copying = 0;          // to the host
    std::vector<uint32_t> home;  // by row: own parts that are not home
    bool launched = false;       // something of it is in a stream
    bool finishing = false;      // all is in the stream
    absl::Status outcome;        // why it is given up
    bool giving_up = false;
    bool end_ordered = false;
    GpuEvent drained;  // recorded when it was given up
    Time release_at = kNever;
  };
  struct Entry {
    Way way = Way::kAsked;
    std::vector<Report> reports;
    Own own;
    absl::Status ended;  // why it is given up, as all are told
    // The first member's:
    bool submitted_orders = false;  // all rows have been ordered
    uint32_t next_row = 0;
    std::vector<uint32_t> away;  // by row: owners' parts that are not home
  };
  struct Order {
    GpuOrderBody body;
    std::string text;
    int units = 0;  // that have been launched
    // Where this order receives: the ring gets another place when a larger tensor is offered meanwhile.
    std::byte* received = nullptr;
  };
  struct Ring {
    std::unique_ptr<GpuComm> comm;
    bps_device_stream stream = nullptr;
    // What the others have sent, in the memory of the GPU: of one order at a time, in the order of the stream.
    std::byte* received = nullptr;
    uint64_t received_bytes = 0;
  };
  struct Copy {
    Key key;
    uint32_t part;
    GpuEvent copied;
  };
  // Pinned memory of a tensor, and the last round whose result may still be copied out of it.
  struct Area {
    std::unique_ptr<PinnedArea> memory;
    std::shared_ptr<GpuRound> last;
    int32_t rounds = 0;  // that use it now
    bool again = false;  // its tensor has been used more than once
    Time used_at = 0;
  };

  bool leads() const { return local_->neighbours().own() == 0; }
  size_t members() const { return local_->neighbours().size(); }
  static Key KeyOf(const Operation& operation);
  Entry* Find(const Operation& operation);
  const Entry* Find(const Operation& operation) const;
  Entry* Get(const Key& key);  // nullptr: it is over here
  GpuRows RowsOf(const Operation& operation) const;

  // Agreeing.
  std::string WhyNot(const Operation& operation);
  absl::Status Prepare(const std::shared_ptr<Gpu>& gpu);
  absl::StatusOr<bool> AreaReady(const Operation& operation);
  bool LookForReady();
  void Offer(const Key& key, const Own* own, const std::string& why_not);
  void OnOffer(size_t index, const Key& key, Report report);
  void Decide(const Key& key, Entry* entry);
  std::string WhyHost(const Entry& entry) const;
  void ToHost(const Key& key, Entry* entry);
  bool TakeRecords();
  bool TakeRecord(const LocalStage::SideRecord& record);

  // Of the first member.
  void Send(GpuOrderBody body, const std::string& text = "");
  bool OrderReductions();
  void OnHome(const Key& key, uint32_t row);
  void OnMemberGivesUp(const Key& key, int32_t code, const std::string& text);

  // Working.
  static absl::Status WithWayOut(const absl::Status& nccl);
  bool RunOrders();
  absl::StatusOr<bool> Execute(Order* order);
  absl::Status Launch(const Order& order, Entry* entry, Ring* ring);
  absl::Status LaunchGather(uint32_t first, uint32_t count, const Own& own, Ring* ring);
  absl::Status AfterReduce(const Order& order, Entry* entry, Ring* ring);
  absl::Status AfterGather(const Order& order, Entry* entry, Ring* ring);
  absl::Status BeginBeyond(Entry* entry);
  absl::StatusOr<Area*> AreaOf(Own* own);
  void GiveBackIdle();
  // Has every copy out of an area ended?
  static bool Idle(const Area& area);
  bool GoesDirect(Own* own, PartRange range);
  // Where the next stage finds an own part, and leaves its result.
  Payload Beyond(const Own& own, uint32_t part) const;
  absl::Status TakeHome(Own* own, uint32_t part, const Payload& result);
  bool TakeCopied();
  absl::Status Conclude(Entry* entry, Ring* ring);

  // In the order of the ranks: what all send to a part's owner, which folds it.
  bool Exchanges(const Operation& operation) const;
  std::string WhyNoFold(const Operation& operation);
  uint64_t ReceivedBytes(const Operation& operation, uint32_t first, uint32_t count) const;
  absl::Status Reserve(Ring* ring, uint64_t bytes);
  absl::Status LaunchExchange(Order* order, const Own& own, Ring* ring);
  absl::Status FoldShares(const Order& order, const Own& own, Ring* ring);

  // Ending.
  void GiveUp(const Key& key, Entry* entry, const absl::Status& why, bool told, bool here);
  void Release(Own* own);
  void RecordDrained(bps_device_stream ring, Own* own);
  bool LookForEnds();
  void LetGoOfArea(Own* own);
  void Forget(const Key& key);
  void Fatal(const absl::Status& why, uint32_t member);

  const GpuGroupOptions options_;
  const std::shared_ptr<Gpus> gpus_;
  const std::shared_ptr<PinnedStock> stock_;
  LocalStage* const local_;
  const Logger* const log_;
  Gpus::Opened gpu_;                     // of this process, once it can work with others
  std::optional<std::string> obstacle_;  // why GPUs of several processes cannot work together; empty: they can
  std::string told_;                     // the reason that the log has: why operations go through the host
  std::vector<Ring> rings_;
  bps_device_stream to_host_ = nullptr, to_device_ = nullptr;
  std::map<Key, Entry> entries_;
  std::vector<Key> waiting_;  // not offered yet, in the order of the submissions
  BusyStreams busy_;
  absl::flat_hash_map<uint64_t, uint64_t> over_;  // by name: rounds below are over here
  absl::flat_hash_map<const Tensor*, Area> areas_;
  // Too small for a later cut; kept until the end, as to give memory back waits for the GPU.
  std::vector<std::byte*> outgrown_received_;
  std::deque<Order> orders_;
  std::deque<Copy> copies_;
  bool joined_ = false;          // the first member's: the rings have been ordered
  std::deque<GpuEvent> groups_;  // the first member's: reductions in the streams
  Time now_ = 0;
  Time looked_at_ = 0;  // for idle areas
  Time poll_ = kLeastPoll;
  bool stopped_ = false, fatal_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_GROUP_STAGE_H_
