// A worker with collectives under way, to whom another worker of the job says anything: announcements, memory that it
// shows, bytes, ends of rounds, and what is said about joins. Every operation ends in its time, and no byte outside of
// an operation's memory is touched.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "core/worker/collectives/collectives.h"
#include "core/worker/collectives/peer_records.h"
#include "core/worker/tensor/tensor.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/rogue.h"

namespace byteps::fuzz {
namespace {

constexpr uint32_t kWorker = 100, kOther = 101;  // members: of ranks 0 and 1
// Bytes beside what an operation is given.
constexpr size_t kMargin = 64;
constexpr std::byte kMark{0x5a};
// Of a tensor that the other worker may ask for.
constexpr uint64_t kMostBytes = uint64_t{1} << 20;

// An operation, its memory, and whether it has ended.
struct Asked {
  uint64_t id = 0;
  std::vector<std::byte> input, output;
  uint64_t bytes = 0;  // of the output
  std::shared_ptr<Request> request = std::make_shared<Request>(nullptr, nullptr);
  std::shared_ptr<CollectiveResult> result = std::make_shared<CollectiveResult>();
};

class Peers : private CollectivesSink {
 public:
  Peers() : rogue_(fabric_.Open("rogue")) {
    CollectivesOptions options;
    options.endpoint = LinkOptions();
    options.release_grace = kMillisecond;
    CollectivesSink* sink = this;
    const auto open = [this] {
      const sim::SimTransport opened = fabric_.Open("worker");
      return absl::StatusOr<Transport>(Transport::Adopt(opened.table, opened.transport));
    };
    collectives_ = std::make_unique<Collectives>(std::move(options), open, sink, &log_);
    control::Epoch epoch;
    epoch.set_session_id(kSession);
    epoch.set_epoch(1);
    epoch.set_nonce("nonce");
    epoch.add_group_sizes(2);
    for (const uint32_t member : {kWorker, kOther}) {
      control::Member* each = epoch.add_workers();
      each->set_member(member);
      each->set_rank(static_cast<int32_t>(member - kWorker));
    }
    collectives_->Start(epoch, epoch.workers(0));
  }
  ~Peers() override { collectives_->Stop(absl::CancelledError("the target ends")); }

  void Talk(Input input) {
    Join(input.Byte());
    for (int said = 0; !input.empty() && !over_; ++said) {
      if (said % 8 == 0) SubmitSome(said / 8);
      // What is said before the link is ready is lost.
      if (said == 0) Until([&] { return rogue_.ready(); }, kSecond);
      const auto type = static_cast<wire::RecordType>(input.Byte());
      const std::span<const std::byte> piece = input.Piece();
      std::vector<std::byte> body(piece.begin(), piece.end());
      if (!IsOfJoins(type)) NameRound(&body);
      if (!IsHuge(type, body)) rogue_.Say(kIdOfWorker, type, body);
      Until([] { return false; }, kMillisecond / 20);
    }
    for (const std::unique_ptr<Asked>& asked : asked_) {
      BPS_FUZZ_CHECK(Until([&] { return asked->request->ended(); }, 60 * kSecond));
      const auto is_mark = [](std::byte each) { return each == kMark; };
      BPS_FUZZ_CHECK(
          std::all_of(asked->output.begin() + static_cast<ptrdiff_t>(asked->bytes), asked->output.end(), is_mark));
    }
  }

 private:
  static constexpr PeerId kIdOfWorker = 1, kIdOfOther = 2;

  // A first byte that is odd: this rank joins first, so it can be asked to take part.
  void Join(uint8_t choice) {
    if (choice % 2 == 0) return;
    if (!collectives_->joins().Admit().ok()) return;
    join_ = std::make_unique<Asked>();
    collectives_->joins().Submit(fabric_.now(), {join_->request, 10 * kSecond, &last_rank_});
  }

  void SubmitSome(int number) {
    const std::string suffix = std::to_string(number);
    Submit(CollectiveKind::kAllReduce, "sum" + suffix, 16, 16);
    Submit(CollectiveKind::kAllReduce, "large" + suffix, 5000, 5000);
    Submit(CollectiveKind::kAllGather, "gather" + suffix, 3000, 6000);
    Submit(CollectiveKind::kAllToAll, "swap" + suffix, 10, 20);
    Submit(CollectiveKind::kBroadcast, "root" + suffix, 2000, 2000);
    Submit(CollectiveKind::kReceive, "", 0, 4000);
    Submit(CollectiveKind::kBarrier, "all" + suffix, 0, 0);
  }

  // Of float32; `room` elements may come back.
  void Submit(CollectiveKind kind, const std::string& name, int64_t elements, int64_t room) {
    auto asked = std::make_unique<Asked>();
    asked->input.resize(static_cast<size_t>(elements) * 4);
    asked->bytes = static_cast<uint64_t>(room) * 4;
    asked->output.resize(asked->bytes + kMargin, kMark);
    Collective collective;
    collective.kind = kind;
    collective.name = name;
    collective.set = all_;
    collective.dtype = BPS_FLOAT32;
    if (kind == CollectiveKind::kBarrier) collective.dtype = BPS_UINT8;
    collective.shape = {kind == CollectiveKind::kReceive ? room : elements};
    collective.input = asked->input.data();
    collective.output = asked->output.data();
    collective.capacity = asked->bytes;
    collective.root = collective.peer = 1;
    collective.timeout = kSecond;
    collective.request = asked->request;
    collective.result = asked->result;
    asked->id = collective.id(0);
    if (!collectives_->Admit(collective).ok()) return;
    asked_.push_back(std::move(asked));
    collectives_->Submit(fabric_.now(), std::move(collective));
  }

  // Begins with the number of a join.
  static bool IsOfJoins(wire::RecordType type) {
    return type == wire::RecordType::kJoined || type == wire::RecordType::kSeen || type == wire::RecordType::kAllJoined;
  }

  // A fuzzer cannot guess what names hash to: as first field, a number n below 32 stands for the id of the n-th
  // operation that is under way.
  void NameRound(std::vector<std::byte>* body) const {
    uint64_t number = 0;
    if (body->size() < sizeof number) return;
    std::memcpy(&number, body->data(), sizeof number);
    if (number < 32 && number < asked_.size()) std::memcpy(body->data(), &asked_[number]->id, sizeof number);
  }

  bool Until(const std::function<bool()>& done, Time limit) {
    const Time end = fabric_.now() + limit;
    while (!done()) {
      if (fabric_.now() >= end) return false;
      bool worked = rogue_.Poll(fabric_.now());
      worked = RunCollectives() || worked;
      if (worked) continue;
      Time next = std::min({end, rogue_.NextTimer(), over_ ? kNever : collectives_->NextTimer()});
      next = std::max(next, fabric_.now() + 1);
      fabric_.Timer(next, [] {});  // so that a step reaches it
      if (!fabric_.Step()) return false;
    }
    return true;
  }

  bool RunCollectives() {
    if (over_) return false;
    const bool worked = collectives_->Run(fabric_.now());
    over_ = !fatal_.ok();
    if (over_) collectives_->Stop(fatal_);
    return worked;
  }

  // How much memory a machine has is not the question here.
  static bool IsHuge(wire::RecordType type, std::span<const std::byte> body) {
    if (type != wire::RecordType::kAnnounce && type != wire::RecordType::kTakePart) return false;
    const absl::StatusOr<PeerAnnouncement> told = PeerAnnouncement::Decode(body);
    if (!told.ok()) return false;
    const uint64_t row = std::max<uint64_t>(told->row_bytes(), 1), most = kMostBytes / row;
    const auto many = [&](int64_t rows) { return rows > 0 && static_cast<uint64_t>(rows) > most; };
    const bool sparse = told->kind() == CollectiveKind::kSparseAllReduce;
    return told->rows() > most || (sparse && many(told->all_rows())) ||
           std::any_of(told->splits.begin(), told->splits.end(), many);
  }

  // CollectivesSink.
  void OnCollectiveDone(std::shared_ptr<Request> request, const absl::Status& outcome) override {
    Completion{std::move(request), outcome}.Run();
  }
  void OnCollectivesFatal(const absl::Status& why, uint32_t) override { fatal_ = why; }
  // The coordinator's part: both learn where the other is.
  void OnTellPeers(const std::vector<uint32_t>&, const control::Lane& lane) override {
    if (std::exchange(met_, true)) return;
    rogue_.Meet(fabric_.now(), Spec(kOther, kWorker, kIdOfWorker, kIdOfOther, lane.address()));
    control::Lane other = lane;
    other.set_address(rogue_.address());
    collectives_->OnAddress(fabric_.now(), kOther, other);
  }
  bool OnTakePart(Time, const AbsentPart&) override { return true; }
  void OnAbsent(Time, uint32_t) override {}
  bool WaitsToGiveUp() const override { return false; }
  TensorName* OnName(const std::string& text) override {
    std::unique_ptr<TensorName>& name = names_[text];
    if (name == nullptr) name = std::make_unique<TensorName>(text, names_.size() - 1);
    return name.get();
  }
  // No operation of this worker goes through stages.
  Operation* OnStaged(uint64_t, uint64_t) override { return nullptr; }
  void OnClash(Time, Operation*, const absl::Status&) override { BPS_FUZZ_CHECK(false); }

  Logger log_{LogOptions{.level = LogLevel::kFatal}};
  sim::SimFabric fabric_{Fabric()};
  Rogue rogue_;
  std::map<std::string, std::unique_ptr<TensorName>> names_;
  const std::shared_ptr<ProcessSet> all_ = ProcessSet::All(2);
  std::vector<std::unique_ptr<Asked>> asked_;
  std::unique_ptr<Asked> join_;
  int32_t last_rank_ = -1;
  bool met_ = false, over_ = false;
  absl::Status fatal_;
  std::unique_ptr<Collectives> collectives_;  // last: it ends before the memory that it may write
};

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps::fuzz::Peers peers;
  peers.Talk(byteps::fuzz::Input(data, size));
  return 0;
}
