#include "device_plugins/fake/comm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"
#include "device_plugins/common/fold.h"

namespace byteps::fake {
namespace {

using devices::ElementBytes;
using devices::Error;

// What a member posts of one collective.
struct Head {
  int32_t kind, reduction, root;
  uint32_t dtype;
  uint64_t count;
  uint64_t offset;  // of its bytes in the unit
};

const char* Name(int32_t kind) {
  static constexpr const char* kNames[] = {"reduce_scatter", "all_gather", "all_reduce", "reduce",
                                           "broadcast",      "send",       "receive"};
  return kNames[kind];
}

bool Pairwise(int32_t kind) { return kind == Collective::kSend || kind == Collective::kReceive; }

std::string Describe(const Head& head) {
  return std::string(Name(head.kind)) + " of " + std::to_string(head.count) + " elements of type " +
         std::to_string(head.dtype) + ", reduction " + std::to_string(head.reduction) + ", root " +
         std::to_string(head.root);
}

// What a member reads and writes of its own memory.
uint64_t BytesRead(const Collective& each, int rank, int size) {
  const uint64_t bytes = each.count * ElementBytes(each.dtype);
  if (each.kind == Collective::kReceive || (each.kind == Collective::kBroadcast && each.root != rank)) return 0;
  return each.kind == Collective::kReduceScatter ? bytes * static_cast<uint64_t>(size) : bytes;
}

uint64_t BytesWritten(const Collective& each, int rank, int size) {
  const uint64_t bytes = each.count * ElementBytes(each.dtype);
  if (each.kind == Collective::kSend || (each.kind == Collective::kReduce && each.root != rank)) return 0;
  return each.kind == Collective::kAllGather ? bytes * static_cast<uint64_t>(size) : bytes;
}

}  // namespace

struct Comm::Inside {
  Inside(const std::string& id, int rank, int size) : meeting(id, rank, size) {}
  Meeting meeting;
  uint64_t put = 0;  // units put into streams
  std::atomic<bool> aborted{false};
};

// One unit on its way.
struct Comm::Unit {
  std::shared_ptr<Inside> inside;
  uint64_t number = 0;
  bool posted = false;
  std::vector<Collective> all;

  // `memory`: for each collective where it reads and writes, if it does. True: it is over.
  bool Run(void* const* memory) {
    if (inside->aborted || memory == nullptr) return true;
    Meeting& meeting = inside->meeting;
    try {
      if (!posted && !(posted = meeting.Post(Pack(memory)))) return false;
    } catch (const Error& error) {
      meeting.Fail(error.what());
      return false;
    }
    std::vector<const std::byte*> theirs;
    for (int member = 0; member < meeting.size(); ++member) {
      theirs.push_back(meeting.Read(number, member));
      if (theirs.back() == nullptr) return false;
    }
    if (!meeting.failure().empty()) return false;
    if (const std::string wrong = Compare(theirs); !wrong.empty()) {
      meeting.Fail(wrong);
      return false;
    }
    for (size_t i = 0; i < all.size(); ++i) Finish(i, theirs, memory[2 * i + 1]);
    meeting.Done(number);
    return true;
  }

  std::vector<std::byte> Pack(void* const* memory) const {
    const int rank = inside->meeting.rank(), size = inside->meeting.size();
    std::vector<std::byte> bytes(sizeof(uint64_t) + all.size() * sizeof(Head));
    const uint64_t count = all.size();
    std::memcpy(bytes.data(), &count, sizeof count);
    for (size_t i = 0; i < all.size(); ++i) {
      const Head head = {all[i].kind, all[i].reduction, all[i].root, all[i].dtype, all[i].count, bytes.size()};
      std::memcpy(bytes.data() + sizeof count + i * sizeof head, &head, sizeof head);
      const auto* from = static_cast<const std::byte*>(memory[2 * i]);
      bytes.insert(bytes.end(), from, from + BytesRead(all[i], rank, size));
    }
    return bytes;
  }

  static std::vector<Head> HeadsOf(const std::byte* unit) {
    uint64_t count = 0;
    std::memcpy(&count, unit, sizeof count);
    std::vector<Head> heads(count);
    std::memcpy(heads.data(), unit + sizeof count, count * sizeof(Head));
    return heads;
  }

  // Of one member: what all take part in, and what it sends to `peer` or receives from it.
  static std::vector<Head> Shared(const std::vector<Head>& heads) {
    std::vector<Head> shared;
    std::copy_if(heads.begin(), heads.end(), std::back_inserter(shared),
                 [](const Head& head) { return !Pairwise(head.kind); });
    return shared;
  }
  static std::vector<Head> Pairs(const std::vector<Head>& heads, int32_t kind, int32_t peer) {
    std::vector<Head> pairs;
    std::copy_if(heads.begin(), heads.end(), std::back_inserter(pairs),
                 [&](const Head& head) { return head.kind == kind && head.root == peer; });
    return pairs;
  }

  std::string Compare(const std::vector<const std::byte*>& theirs) const {
    const int rank = inside->meeting.rank();
    const std::vector<Head> own = HeadsOf(theirs[static_cast<size_t>(rank)]);
    for (int member = 0; member < static_cast<int>(theirs.size()); ++member) {
      const std::vector<Head> heads = HeadsOf(theirs[static_cast<size_t>(member)]);
      const auto differ = [&](const std::vector<Head>& a, const std::vector<Head>& b, bool pairs) -> std::string {
        const auto text = [](const std::vector<Head>& list, size_t i) {
          return i < list.size() ? Describe(list[i]) : std::string("nothing");
        };
        for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
          const bool same =
              i < a.size() && i < b.size() && a[i].dtype == b[i].dtype && a[i].count == b[i].count &&
              (pairs || (a[i].kind == b[i].kind && a[i].reduction == b[i].reduction && a[i].root == b[i].root));
          if (same) continue;
          return "unit " + std::to_string(number) + ": rank " + std::to_string(rank) + " asks for " + text(a, i) +
                 ", rank " + std::to_string(member) + " for " + text(b, i);
        }
        return "";
      };
      std::string wrong = differ(Shared(own), Shared(heads), false);
      if (wrong.empty()) {
        wrong = differ(Pairs(own, Collective::kReceive, member), Pairs(heads, Collective::kSend, rank), true);
      }
      if (wrong.empty()) {
        wrong = differ(Pairs(own, Collective::kSend, member), Pairs(heads, Collective::kReceive, rank), true);
      }
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

  // Which of the heads of a member is the counterpart of our collective `index`.
  size_t Counterpart(size_t index, const std::vector<Head>& heads) const {
    const int32_t kind = all[index].kind, peer = all[index].root;
    const auto counts = [&](const Collective& each) {
      return kind == Collective::kReceive ? each.kind == kind && each.root == peer : !Pairwise(each.kind);
    };
    auto before = std::count_if(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(index), counts);
    for (size_t i = 0; i < heads.size(); ++i) {
      const bool fits = kind == Collective::kReceive
                            ? heads[i].kind == Collective::kSend && heads[i].root == inside->meeting.rank()
                            : !Pairwise(heads[i].kind);
      if (fits && before-- == 0) return i;
    }
    return 0;  // Compare has found it
  }

  void Finish(size_t index, const std::vector<const std::byte*>& theirs, void* to) const {
    const Collective& each = all[index];
    const auto rank = static_cast<size_t>(inside->meeting.rank());
    if (BytesWritten(each, static_cast<int>(rank), static_cast<int>(theirs.size())) == 0) return;
    const uint64_t bytes = each.count * ElementBytes(each.dtype);
    const auto of = [&](size_t member) {
      const std::vector<Head> heads = HeadsOf(theirs[member]);
      return theirs[member] + heads[Counterpart(index, heads)].offset;
    };
    switch (each.kind) {
      case Collective::kReduceScatter:
      case Collective::kAllReduce:
      case Collective::kReduce: {
        const uint64_t offset = each.kind == Collective::kReduceScatter ? rank * bytes : 0;
        std::vector<const void*> sources;
        // The same order on all members, and not that of the ranks.
        for (size_t i = 0; i < theirs.size(); ++i) sources.push_back(of(theirs.size() - 1 - i) + offset);
        return devices::Fold(to, sources, each.count, each.dtype, each.reduction);
      }
      case Collective::kAllGather:
        for (size_t member = 0; member < theirs.size(); ++member) {
          std::memcpy(static_cast<std::byte*>(to) + member * bytes, of(member), bytes);
        }
        return;
      case Collective::kBroadcast:
      case Collective::kReceive:
        std::memcpy(to, of(static_cast<size_t>(each.root)), bytes);
        return;
      case Collective::kSend:
        return;
    }
  }
};

Comm::Comm(std::shared_ptr<Machine> machine, int device, const std::string& id, int rank, int size)
    : machine_(std::move(machine)), device_(device), inside_(std::make_shared<Inside>(id, rank, size)) {}

Comm::~Comm() { inside_->aborted = true; }

bool Comm::State() {
  machine_->Begin(device_, "state");
  if (const std::string wrong = inside_->meeting.failure(); !wrong.empty()) throw Error(BPS_INTERNAL, wrong);
  if (!inside_->meeting.AllHere()) return false;
  return busy_ == 0 || --busy_ == 0;
}

Stream* Comm::StreamOf(bps_device_stream stream) {
  Stream* known = machine_->Known(stream, device_);
  machine_->CheckTakes(*known, device_);
  return known;
}

void Comm::Begin() {
  machine_->Begin(device_, "begin");
  ++depth_;
}

void Comm::Add(Collective collective) {
  machine_->Begin(device_, Name(collective.kind));
  if (depth_ == 0) throw Error(BPS_FAILED_PRECONDITION, "a collective outside of begin and end");
  const bool folds = collective.kind <= Collective::kReduce && collective.kind != Collective::kAllGather;
  folds ? devices::CheckFold(collective.dtype, collective.reduction) : void(ElementBytes(collective.dtype));
  if (collective.root < 0 || collective.root >= inside_->meeting.size()) {
    throw Error(BPS_INVALID_ARGUMENT, "there is no member " + std::to_string(collective.root));
  }
  if (!unit_.empty() && unit_.front().stream != collective.stream) {
    throw Error(BPS_INVALID_ARGUMENT, "collectives of one unit in two streams");
  }
  unit_.push_back(collective);
}

void Comm::End() {
  machine_->Begin(device_, "end");
  if (depth_ == 0) throw Error(BPS_FAILED_PRECONDITION, "end without begin");
  if (--depth_ != 0 || unit_.empty()) return;
  auto unit = std::make_shared<Unit>();
  unit->inside = inside_;
  unit->number = inside_->put;
  unit->all = std::exchange(unit_, {});
  Stream* const stream = unit->all.front().stream;
  const int rank = inside_->meeting.rank(), size = inside_->meeting.size();
  std::vector<fake_gpu_access> accesses;
  for (const Collective& each : unit->all) {
    accesses.push_back({each.from, BytesRead(each, rank, size), 0, 0});
    accesses.push_back({each.to, BytesWritten(each, rank, size), 1, 0});
  }
  machine_->Meet(
      stream, [unit](void* const* memory) { return unit->Run(memory); }, std::move(accesses));
  if (runner_ == nullptr && inside_->meeting.AmongProcesses()) runner_ = std::make_unique<Runner>(machine_);
  ++inside_->put;
  busy_ = 3;
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void Comm::ReduceScatter(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                         bps_device_stream stream) {
  Add({Collective::kReduceScatter, from, to, count, dtype, reduction, 0, StreamOf(stream)});
}

void Comm::AllGather(const void* from, void* to, uint64_t count, uint32_t dtype, bps_device_stream stream) {
  Add({Collective::kAllGather, from, to, count, dtype, 0, 0, StreamOf(stream)});
}

void Comm::AllReduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                     bps_device_stream stream) {
  Add({Collective::kAllReduce, from, to, count, dtype, reduction, 0, StreamOf(stream)});
}

void Comm::Reduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction, int32_t root,
                  bps_device_stream stream) {
  Add({Collective::kReduce, from, to, count, dtype, reduction, root, StreamOf(stream)});
}

void Comm::Broadcast(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root,
                     bps_device_stream stream) {
  Add({Collective::kBroadcast, from, to, count, dtype, 0, root, StreamOf(stream)});
}

void Comm::Send(const void* from, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream) {
  Add({Collective::kSend, from, nullptr, count, dtype, 0, peer, StreamOf(stream)});
}

void Comm::Receive(void* to, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream) {
  Add({Collective::kReceive, nullptr, to, count, dtype, 0, peer, StreamOf(stream)});
}

void Comm::Leave() {
  for (Stream* stream : streams_) machine_->Synchronize(stream);
}

}  // namespace byteps::fake
