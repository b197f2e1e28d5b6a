#include "core/worker/device/gpu_group_stage.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/reduce/dtype.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

constexpr size_t kMaxText = 1024;

bool IsBroadcast(const Operation& operation) { return operation.asked.kind == wire::Operation::kBroadcast; }

std::span<const std::byte> BytesOfText(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), std::min(text.size(), kMaxText)));
}

// The text behind a body.
template <typename Body>
bool ReadBody(std::span<const std::byte> record, Body* body, std::string* text) {
  if (!ReadStruct(record, body) || body->text > record.size() - sizeof *body) return false;
  text->assign(reinterpret_cast<const char*>(record.data()) + sizeof *body, body->text);
  return true;
}

bool KnownToDevices(uint32_t dtype) {
  for (const uint32_t known :
       {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16, BPS_INT8, BPS_UINT8, BPS_INT32, BPS_INT64}) {
    if (dtype == known) return true;
  }
  return false;
}

bool IsFloat(uint32_t dtype) {
  return dtype == BPS_FLOAT32 || dtype == BPS_FLOAT64 || dtype == BPS_FLOAT16 || dtype == BPS_BFLOAT16;
}

// Equal for two processes that use one GPU: "0000:1b:00.0"; 0: not known.
uint64_t DeviceNumber(const std::string& pci) {
  uint64_t number = 0;
  for (const char c : pci) {
    if (absl::ascii_isxdigit(static_cast<unsigned char>(c))) number = number * 31 + static_cast<unsigned char>(c);
  }
  return number;
}

}  // namespace

GpuGroupStage::GpuGroupStage(GpuGroupOptions options, std::shared_ptr<Gpus> gpus, std::shared_ptr<PinnedStock> stock,
                             LocalStage* local, const Logger* log)
    : options_(std::move(options)),
      gpus_(std::move(gpus)),
      stock_(std::move(stock)),
      local_(local),
      log_(log),
      rings_(options_.rings) {}

GpuGroupStage::~GpuGroupStage() {
  Stop();
  areas_.clear();
  entries_.clear();
  groups_.clear();
  for (const Ring& ring : rings_) {
    if (ring.stream != nullptr) gpu_.gpu->StreamDestroy(ring.stream).IgnoreError();
  }
  for (bps_device_stream stream : {to_host_, to_device_}) {
    if (stream != nullptr) gpu_.gpu->StreamDestroy(stream).IgnoreError();
  }
  for (const Ring& ring : rings_) outgrown_received_.push_back(ring.received);
  for (std::byte* each : outgrown_received_) {
    if (each != nullptr) gpu_.gpu->Release(each).IgnoreError();
  }
}

GpuGroupStage::Key GpuGroupStage::KeyOf(const Operation& operation) {
  return {wire::NameId(operation.asked.tensor->cut->key()), operation.round};
}

GpuGroupStage::Entry* GpuGroupStage::Get(const Key& key) {
  const auto over = over_.find(key.first);
  if (over != over_.end() && key.second < over->second) return nullptr;
  Entry& entry = entries_[key];
  entry.reports.resize(members());
  return &entry;
}

const GpuGroupStage::Entry* GpuGroupStage::Find(const Operation& operation) const {
  if (!operation.asked.tensor->cut) return nullptr;
  const auto found = entries_.find(KeyOf(operation));
  return found == entries_.end() || found->second.own.operation != &operation ? nullptr : &found->second;
}

GpuGroupStage::Entry* GpuGroupStage::Find(const Operation& operation) {
  return const_cast<Entry*>(std::as_const(*this).Find(operation));
}

GpuRows GpuGroupStage::RowsOf(const Operation& operation) const {
  return {*operation.asked.tensor->cut, KeyOf(operation).first, members(), options_.roots};
}

// ---- Agreeing ----

// Why an operation cannot be one of GPUs; empty: it can.
std::string GpuGroupStage::WhyNot(const Operation& operation) {
  const Submission& asked = operation.asked;
  if (!options_.refusal.empty()) return options_.refusal;
  for (const uint32_t root : options_.roots) {
    if (root >= members()) return absl::StrCat("BYTEPS_REDUCE_ROOTS names ", root, "; ", members(), " workers reduce");
  }
  const GpuRound& gpu = *asked.gpu;
  const bool reads = !IsBroadcast(operation) || gpu.input.gpu != nullptr;
  if (!gpu.output.on_device || (reads && !gpu.input.on_device)) return "input or output is in host memory";
  if (asked.tensor->bytes() == 0) return "it has no elements";
  if (asked.scaled && (asked.prescale != 1 || asked.postscale != 1)) return "it is scaled";
  if (asked.memory_dtype != 0) return "its elements are cast";
  if (!KnownToDevices(asked.tensor->dtype())) return "its data type is none of the GPUs' collectives";
  if (IsBroadcast(operation)) {
    if (local_->beyond()) return "it is a broadcast among several hosts";
    return std::string(Prepare(gpu.output.gpu).message());
  }
  const bool is_float = IsFloat(asked.tensor->dtype());
  // NCCL's minimum and maximum of floats pass a NaN over; BPS_MIN and BPS_MAX keep it, and the fold does.
  const bool ordered =
      (asked.reduction == BPS_MIN || asked.reduction == BPS_MAX) && (!is_float || options_.deterministic);
  const bool plain = asked.reduction == BPS_SUM || asked.reduction == BPS_PRODUCT || ordered;
  const bool average = asked.reduction == BPS_AVERAGE && (local_->beyond() || is_float);
  if (!plain && !average) return "its reduction is none of the GPUs' collectives";
  if (const absl::Status status = Prepare(gpu.output.gpu); !status.ok()) return std::string(status.message());
  return options_.deterministic ? WhyNoFold(operation) : "";
}

// What belongs to this process's GPU.
absl::Status GpuGroupStage::Prepare(const std::shared_ptr<Gpu>& gpu) {
  if (gpu_.gpu == nullptr) {
    absl::StatusOr<Gpus::Opened> opened = gpus_->Get(gpu->index());
    if (!opened.ok()) return opened.status();
    if (!obstacle_) obstacle_ = gpus_->WhyNoCollectives();
    if (!obstacle_->empty()) return absl::UnavailableError("no collectives of GPUs: " + *obstacle_);
    gpu_ = *std::move(opened);
  }
  if (gpu_.gpu->index() != gpu->index()) return absl::UnimplementedError("this process uses a second GPU");
  std::vector<bps_device_stream*> streams = {&to_host_, &to_device_};
  for (Ring& ring : rings_) streams.push_back(&ring.stream);
  for (bps_device_stream* stream : streams) {
    if (*stream != nullptr) continue;
    absl::StatusOr<bps_device_stream> made = gpu->StreamCreate(stream == &to_host_ ? 0 : 1);
    if (!made.ok()) return made.status();
    *stream = *made;
  }
  return absl::OkStatus();
}

void GpuGroupStage::Begin(Time now, Operation* operation, const Areas& areas, PartRange range) {
  now_ = now;
  poll_ = kLeastPoll;
  const Key key = KeyOf(*operation);
  // Another worker may have asked for this round already.
  const auto found = entries_.find(key);
  const bool ended = found != entries_.end() && found->second.way == Way::kEnded;
  if (operation->asked.gpu == nullptr && !ended) {
    if (found != entries_.end() && found->second.way != Way::kAsked) {
      ToHost(key, &found->second);
    } else if (found != entries_.end() && !found->second.reports[local_->neighbours().own()].offered) {
      Offer(key, nullptr, "its memory is the host's");
    }
    return RelayStage::Begin(now, operation, areas, range);
  }
  Entry* entry = Get(key);
  if (entry == nullptr) return RelayStage::Begin(now, operation, areas, range);
  Own& own = entry->own;
  own = Own();
  own.operation = operation;
  own.gpu = operation->asked.gpu;
  own.asked = areas;
  own.range = range;
  if (entry->way == Way::kHost) return ToHost(key, entry);
  if (!ended) return waiting_.push_back(key);
  own.offered = own.end_ordered = true;  // the others wait for it no more
  GiveUp(key, entry, entry->ended, true, false);
}

void GpuGroupStage::Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) {
  Entry* entry = Find(*operation);
  if (entry == nullptr) return RelayStage::Push(now, operation, part, source, target);
  entry->own.parts.push_back({part, source, target});
}

// Has every copy out of the area of its tensor ended?
absl::StatusOr<bool> GpuGroupStage::AreaReady(const Operation& operation) {
  const auto area = areas_.find(operation.asked.tensor);
  if (area == areas_.end() || area->second.last == nullptr) return true;
  absl::StatusOr<bool> ready = area->second.last->finished.Query();
  if (ready.ok() && *ready) area->second.last = nullptr;
  return ready;
}

// Has everything ended that was in the caller's streams at the submission, and every copy out of its area? In the order
// of the submissions: what is behind a busy stream is not asked for.
bool GpuGroupStage::LookForReady() {
  bool worked = false;
  busy_.Clear();
  for (size_t i = 0; i < waiting_.size();) {
    const Key key = waiting_[i];
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second.own.operation == nullptr || found->second.own.offered ||
        found->second.own.giving_up) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    ++i;
    Own& own = found->second.own;
    if (own.parts.size() != own.range.size()) continue;
    if (!own.why_not) own.why_not = WhyNot(*own.operation);
    if (options_.required && obstacle_ && !obstacle_->empty()) {
      worked = true;
      Abort(now_, own.operation,
            absl::UnavailableError("BYTEPS_NCCL=1, but there are no collectives of GPUs: " + *obstacle_));
      continue;
    }
    if (own.why_not->empty()) {
      if (busy_.Has(*own.gpu)) continue;
      const absl::StatusOr<const GpuRound::End*> unready = own.gpu->Unready();
      if (unready.ok() && *unready != nullptr) {
        busy_.Add(**unready);
        continue;
      }
      const absl::StatusOr<bool> ready = unready.ok() ? AreaReady(*own.operation) : unready.status();
      if (ready.ok() && !*ready) continue;
      if (!ready.ok()) own.why_not = std::string(ready.status().message());
    }
    worked = true;
    const std::string why_not = *own.why_not;
    Offer(key, &own, why_not);
  }
  return worked;
}

// `own`: nullptr for an operation that has passed by.
void GpuGroupStage::Offer(const Key& key, const Own* own, const std::string& why_not) {
  GpuOfferBody body = {};
  body.name = key.first;
  body.round = key.second;
  body.able = why_not.empty() ? 1 : 0;
  if (own != nullptr) body.fingerprint = own->operation->fingerprint;
  body.options = options_.Number();
  if (gpu_.gpu != nullptr && !options_.shares_gpu) body.device = DeviceNumber(gpu_.gpu->pci());
  body.text = static_cast<uint32_t>(std::min(why_not.size(), kMaxText));
  const size_t self = local_->neighbours().own();
  for (size_t index = 0; index < members(); ++index) {
    if (index != self) local_->SendSide(index, wire::RecordType::kGpuOffer, BytesOf(body), BytesOfText(why_not));
  }
  if (Entry* entry = Get(key); entry != nullptr) entry->own.offered = true;
  OnOffer(self, key, {true, why_not.empty(), body.fingerprint, body.device, body.options, why_not});
}

void GpuGroupStage::OnOffer(size_t index, const Key& key, Report report) {
  Entry* entry = Get(key);
  if (entry == nullptr) return;
  const size_t self = local_->neighbours().own();
  entry->reports[index] = std::move(report);
  // Ours has gone another way, before another worker asked.
  if (index != self && !entry->reports[self].offered && entry->own.operation == nullptr &&
      local_->Submitted(key.first, key.second)) {
    Offer(key, nullptr, "its memory is the host's");
    entry = Get(key);
  }
  if (entry != nullptr && leads() && entry->way == Way::kAsked) Decide(key, entry);
}

// Why a round goes through the host, as far as members have offered; empty: nothing is known against GPUs.
std::string GpuGroupStage::WhyHost(const Entry& entry) const {
  const Neighbours& all = local_->neighbours();
  for (size_t index = 0; index < members(); ++index) {
    const Report& report = entry.reports[index];
    if (!report.offered) continue;
    if (!report.able) return absl::StrCat(all.description(index), ": ", report.why);
    for (size_t other = 0; other < index; ++other) {
      const Report& theirs = entry.reports[other];
      if (!theirs.offered) continue;
      const std::string both = absl::StrCat(all.description(other), " and ", all.description(index));
      // The local stage tells in what they disagree.
      if (theirs.fingerprint != report.fingerprint) return both + " submit different operations";
      if (report.device != 0 && theirs.device == report.device) return both + " use the same GPU";
      if (theirs.options != report.options)
        return both + " differ in BYTEPS_NCCL_NUM_RINGS, BYTEPS_REDUCE_ROOTS or BYTEPS_DETERMINISTIC";
    }
  }
  return "";
}

void GpuGroupStage::Decide(const Key& key, Entry* entry) {
  GpuOrderBody body = {};
  body.name = key.first;
  body.round = key.second;
  if (std::string why = WhyHost(*entry); !why.empty()) {
    entry->way = Way::kHost;
    body.kind = GpuOrderKind::kHost;
    if (why != told_) {
      // What is slow and was not asked for.
      const LogLevel level = obstacle_ && !obstacle_->empty() ? LogLevel::kWarning : LogLevel::kInfo;
      if (log_->Enabled(level)) {
        log_->Write(level, __FILE__, __LINE__, "tensors of GPUs are reduced in the memory of the host: " + why);
      }
    }
    told_ = std::move(why);
    return Send(body);
  }
  const auto offered = [](const Report& report) { return report.offered; };
  const bool all = std::all_of(entry->reports.begin(), entry->reports.end(), offered);
  if (!all) return;
  if (!joined_) {
    joined_ = true;
    for (uint32_t ring = 0; ring < options_.rings; ++ring) {
      const absl::StatusOr<std::string> id = GpuComm::NewId(*gpu_.gpu, options_.config);
      if (!id.ok()) return Fatal(WithWayOut(id.status()), 0);
      GpuOrderBody join = {};
      join.kind = GpuOrderKind::kJoin;
      join.ring = ring;
      Send(join, *id);
    }
  }
  entry->way = Way::kGpus;
  const GpuRows rows = RowsOf(*entry->own.operation);
  for (uint32_t row = 0; row < rows.size(); ++row) entry->away.push_back(rows.last(row) - rows.first(row));
}

// On, as if this stage was not there.
void GpuGroupStage::ToHost(const Key& key, Entry* entry) {
  Own own = std::move(entry->own);
  entries_.erase(key);
  over_[key.first] = std::max(over_[key.first], key.second + 1);
  if (own.operation == nullptr) return;
  RelayStage::Begin(now_, own.operation, own.asked, own.range);
  for (const Part& part : own.parts) RelayStage::Push(now_, own.operation, part.part, part.source, part.target);
}

bool GpuGroupStage::TakeRecords() {
  if (!local_->has_side_records()) return false;
  for (const LocalStage::SideRecord& record : local_->TakeSideRecords()) {
    if (TakeRecord(record)) continue;
    Fatal(absl::InternalError(local_->neighbours().description(record.index) +
                              " sent an invalid record of an operation on GPUs"),
          0);
  }
  return true;
}

bool GpuGroupStage::TakeRecord(const LocalStage::SideRecord& record) {
  std::string text;
  if (record.type == wire::RecordType::kGpuOffer) {
    GpuOfferBody body;
    if (!ReadBody(record.body, &body, &text)) return false;
    OnOffer(record.index, {body.name, body.round},
            {true, body.able != 0, body.fingerprint, body.device, body.options, text});
  } else if (record.type == wire::RecordType::kGpuHome) {
    GpuHomeBody body;
    if (!ReadStruct(record.body, &body) || !leads()) return false;
    OnHome({body.name, body.round}, body.row);
  } else if (record.type == wire::RecordType::kGpuOrder) {
    GpuOrderBody body;
    if (!ReadBody(record.body, &body, &text) || record.index != 0 || body.ring >= options_.rings) return false;
    orders_.push_back({body, text});
  } else {
    GpuGiveUpBody body;
    if (!ReadBody(record.body, &body, &text) || !leads()) return false;
    OnMemberGivesUp({body.name, body.round}, body.code, text);
  }
  return true;
}

// ---- Ends ----

// `told`: the others know. `here`: the stages behind this one do not.
void GpuGroupStage::GiveUp(const Key& key, Entry* entry, const absl::Status& why, bool told, bool here) {
  Own& own = entry->own;
  if (own.giving_up || own.finishing) return;
  own.giving_up = true;
  own.outcome = Retryable(Annotate(why, DescribeOperation(*own.operation)));
  Release(&own);
  sink_->OnGivingUp(own.operation, why, told);
  if (!told) {
    const Neighbours& all = local_->neighbours();
    const std::string text = absl::StrCat(all.description(all.own()), " gave up: ", absl::string_view(why.message()));
    const int32_t code = absl::IsCancelled(why) ? BPS_ABORTED : StatusCode(why);
    entry->ended = MakeStatus(code, text);
    GpuGiveUpBody body = {key.first, key.second, code, static_cast<uint32_t>(std::min(text.size(), kMaxText))};
    if (leads()) {
      OnMemberGivesUp(key, code, text);
    } else {
      local_->SendSide(0, wire::RecordType::kGpuGiveUp, BytesOf(body), BytesOfText(text));
    }
  }
  if (own.begun && !own.through) {
    here ? next()->Abort(now_, own.operation, why) : next()->Withdraw(now_, own.operation, why);
  } else if (here && local_->beyond()) {
    // No server has offered of it from here, and other hosts wait for this one.
    own.operation->by_gpus = own.begun = true;
    own.through = false;
    next()->Abort(now_, own.operation, why);
  }
}

// From now on it waits for what is in the streams, for kReleaseTime.
void GpuGroupStage::Release(Own* own) { own->release_at = std::min(own->release_at, After(now_, kReleaseTime)); }

void GpuGroupStage::Abort(Time now, Operation* operation, const absl::Status& why) {
  now_ = now;
  Entry* entry = Find(*operation);
  if (entry == nullptr) return RelayStage::Abort(now, operation, why);
  Own& own = entry->own;
  if (own.finishing) return Release(&own);
  const Key key = KeyOf(*operation);
  if (own.offered) return GiveUp(key, entry, why, false, true);
  // No member counts on this GPU: the others hear why from the stages behind this one.
  Own mine = std::move(own);
  own = Own();
  Offer(key, &mine, "given up");
  RelayStage::Abort(now, operation, why);
}

void GpuGroupStage::OnAssigned(Tensor* tensor, std::span<const Tensor::Owed> given_up) {
  const uint64_t name = wire::NameId(tensor->cut->key());
  for (const Tensor::Owed& owed : given_up) {
    if (entries_.contains({name, owed.round})) Offer({name, owed.round}, nullptr, "given up");
  }
}

void GpuGroupStage::OnGivingUp(Operation* operation, const absl::Status& why, bool told) {
  Entry* entry = Find(*operation);
  if (entry == nullptr) return RelayStage::OnGivingUp(operation, why, told);
  GiveUp(KeyOf(*operation), entry, why, false, false);
}

void GpuGroupStage::OnStageDone(Operation* operation, const absl::Status& outcome) {
  Entry* entry = Find(*operation);
  if (entry == nullptr) return RelayStage::OnStageDone(operation, outcome);
  entry->own.through = true;
  if (!outcome.ok()) GiveUp(KeyOf(*operation), entry, outcome, false, false);
}

// Behind the collectives in the ring's stream, and behind results that are being copied to the GPU. (Copies to the host
// are waited for one by one.)
void GpuGroupStage::RecordDrained(bps_device_stream ring, Own* own) {
  absl::StatusOr<GpuEvent> home = gpu_.events->Take();
  absl::StatusOr<GpuEvent> drained = gpu_.events->Take();
  if (!home.ok() || !drained.ok()) return;
  if (!home->Record(to_device_).ok() || !home->Delay(ring).ok()) return;
  own->drained = *std::move(drained);
  own->drained.Record(ring).IgnoreError();
}

bool GpuGroupStage::LookForEnds() {
  bool worked = false;
  for (auto it = entries_.begin(); it != entries_.end() && !fatal_;) {
    const Key key = it->first;
    Entry& entry = (it++)->second;
    Own& own = entry.own;
    if (own.operation == nullptr || (!own.giving_up && !own.finishing)) continue;
    absl::StatusOr<bool> ended = own.through && own.copying == 0;
    if (*ended && own.finishing) {
      ended = own.gpu->finished.Query();
    } else if (*ended && own.launched) {
      // What of it is ordered still may follow until the order to end has come.
      ended = own.end_ordered;
      if (*ended && !own.drained) RecordDrained(rings_[key.first % options_.rings].stream, &own);
      if (*ended && own.drained) ended = own.drained.Query();
    } else if (*ended) {
      ended = own.end_ordered || now_ >= own.release_at;
    }
    if (!ended.ok() && own.outcome.ok()) own.outcome = ended.status();
    if (ended.ok() && !*ended) {
      if (now_ >= own.release_at && own.through && own.launched) {
        Fatal(absl::DeadlineExceededError(absl::StrCat(
                  DescribeOperation(*own.operation), ": a collective of the GPUs of this host (", gpu_.gpu->name(),
                  ") has not ended", own.outcome.ok() ? "" : "; ", absl::string_view(own.outcome.message()))),
              0);
      }
      continue;
    }
    worked = true;
    Operation* const operation = own.operation;
    const absl::Status outcome = own.outcome;
    const PartRange range = own.range;
    // No order has come in time: one that the round goes through the host comes too late.
    if (own.giving_up && !own.end_ordered) local_->EndRound(now_, key.first, key.second, entry.ended);
    Forget(key);
    if (outcome.ok()) {
      for (uint32_t part = range.first; part < range.last; ++part) sink_->OnPartHome(operation, part, Payload());
    }
    sink_->OnStageDone(operation, outcome);
  }
  return worked;
}

void GpuGroupStage::LetGoOfArea(Own* own) {
  if (!std::exchange(own->has_area, false)) return;
  Area& area = areas_.at(own->operation->asked.tensor);
  --area.rounds;
  // A copy may still be under way to it, or out of it: then it stays where it is.
  if (!own->outcome.ok()) area.again = true;
}

void GpuGroupStage::Forget(const Key& key) {
  if (const auto found = entries_.find(key); found != entries_.end()) LetGoOfArea(&found->second.own);
  entries_.erase(key);
  over_[key.first] = std::max(over_[key.first], key.second + 1);
}

void GpuGroupStage::Drop(Operation* operation) {
  Entry* entry = Find(*operation);
  if (entry == nullptr) return RelayStage::Drop(operation);
  const bool begun = entry->own.begun && !entry->own.through;
  Forget(KeyOf(*operation));
  if (begun) RelayStage::Drop(operation);
}

void GpuGroupStage::Fatal(const absl::Status& why, uint32_t member) {
  if (std::exchange(fatal_, true)) return;
  sink_->OnStageFatal(why, member);
}

void GpuGroupStage::Stop() {
  if (std::exchange(stopped_, true)) return;
  const bool idle = !fatal_ && orders_.empty() && std::none_of(entries_.begin(), entries_.end(), [](const auto& each) {
    return each.second.own.operation != nullptr;
  });
  for (Ring& ring : rings_) {
    if (idle && ring.comm != nullptr) ring.comm->Leave();
    ring.comm = nullptr;  // ends what is in its stream
  }
  // Behind all that is in the own streams: operations that have not ended well have no event of their own there.
  std::vector<GpuEvent> ends;
  const auto note_end = [&](bps_device_stream stream) {
    if (stream == nullptr) return;
    absl::StatusOr<GpuEvent> end = gpu_.events->Take();
    // A lost context does nothing more.
    if (end.ok() && end->Record(stream).ok()) ends.push_back(*std::move(end));
  };
  note_end(to_host_);
  note_end(to_device_);
  for (const Ring& ring : rings_) note_end(ring.stream);
  const auto under_way = [&] {
    while (!ends.empty()) {
      const absl::StatusOr<bool> ended = ends.back().Query();
      if (ended.ok() && !*ended) return true;
      ends.pop_back();
    }
    while (!copies_.empty()) {
      const absl::StatusOr<bool> copied = copies_.front().copied.Query();
      if (copied.ok() && !*copied) return true;
      copies_.pop_front();
    }
    return std::any_of(entries_.begin(), entries_.end(), [](const auto& each) {
      if (!each.second.own.finishing) return false;
      const absl::StatusOr<bool> finished = each.second.own.gpu->finished.Query();
      return finished.ok() && !*finished;
    });
  };
  for (const Time until = After(Now(), kReleaseTime); under_way();) {
    if (Now() >= until) {
      BPS_LOG(*log_, kError) << "collectives in the GPU's streams have not ended when the session did";
      return;
    }
    ::sched_yield();
  }
}

// ---- Progress ----

bool GpuGroupStage::Run(Time now) {
  if (stopped_ || fatal_) return false;
  now_ = now;
  bool worked = TakeRecords();
  if (entries_.empty() && orders_.empty()) return worked;
  if (const std::optional<size_t> lost = local_->neighbours().FirstLost()) {
    const bool any = std::any_of(entries_.begin(), entries_.end(),
                                 [](const auto& each) { return each.second.own.operation != nullptr; });
    if (any) Fatal(local_->neighbours().lost(*lost), local_->neighbours().member(*lost));
    return true;
  }
  worked |= LookForReady();
  if (leads()) worked |= OrderReductions();
  worked |= RunOrders();
  worked |= TakeCopied();
  worked |= LookForEnds();
  poll_ = worked ? kLeastPoll : std::min(2 * poll_, kMostPoll);
  return worked;
}

Time GpuGroupStage::NextTimer() const {
  if (stopped_ || fatal_) return kNever;
  if (local_->has_side_records()) return now_;
  const bool device =
      !orders_.empty() || !copies_.empty() || std::any_of(entries_.begin(), entries_.end(), [&](const auto& each) {
        const Entry& entry = each.second;
        const Own& own = entry.own;
        // The next groups follow when the first have ended.
        const bool to_order = !groups_.empty() && entry.way == Way::kGpus && !entry.submitted_orders && !own.giving_up;
        return to_order || (own.operation != nullptr && (!own.offered || own.finishing || own.giving_up));
      });
  return device ? After(now_, poll_) : kNever;
}

std::string GpuGroupStage::WhoIsMissing(const Operation& operation) const {
  const Entry* entry = Find(operation);
  if (entry == nullptr) return RelayStage::WhoIsMissing(operation);
  const Own& own = entry->own;
  if (!own.offered) {
    std::string unready = own.gpu->DescribeUnready();
    return unready.empty() ? "the copies of the tensor's last result have not ended" : unready;
  }
  const std::string absent =
      local_->neighbours().Describe([&](size_t index) { return !entry->reports[index].offered; });
  if (!absent.empty()) return "not submitted by " + absent;
  if (own.copying != 0) return absl::StrCat("a copy from ", gpu_.gpu->name(), " to the host has not ended");
  if (own.begun && !own.through) return next()->WhoIsMissing(operation);
  return absl::StrCat("the collectives of ", gpu_.gpu == nullptr ? "the GPU" : gpu_.gpu->name(),
                      " with the other GPUs of this host have not ended");
}

}  // namespace byteps
