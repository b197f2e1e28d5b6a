#include "core/worker/local/local_stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/byte_buffer.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/reduce/dtype.h"
#include "core/wire/message.h"
#include "core/wire/offer.h"

namespace byteps {
namespace {

// Between two looks for memory of a peer of which we have heard before it came.
constexpr Time kReachInterval = 100'000;

}  // namespace

absl::Status LocalStage::Usable(const bps_transport_caps& caps) {
  if ((caps.flags & BPS_TRANSPORT_COPY) == 0) {
    return absl::FailedPreconditionError("it cannot copy from and to the memory of another process here");
  }
  if (caps.alignment > 1) return absl::FailedPreconditionError("it takes aligned memory only");
  return absl::OkStatus();
}

uint64_t LocalStage::MaxInline(const bps_transport_caps& caps) {
  return caps.max_message - sizeof(wire::MessageHeader) - sizeof(wire::RecordHeader) - sizeof(wire::OfferBody) - 8;
}

LocalStage::LocalStage(LocalStageOptions options, Scheduler scheduler, Transport transport, EndpointOptions endpoint,
                       Logger* log)
    : options_(options),
      log_(log),
      caps_(transport.caps()),
      work_(std::move(scheduler), static_cast<LocalWorkSink*>(this)) {
  EndpointHandler* handler = this;
  endpoint_ = std::make_unique<Endpoint>(std::move(transport), std::move(endpoint), handler, log);
  neighbours_ = std::make_unique<Neighbours>(endpoint_.get(), log);
}

LocalStage::~LocalStage() { Stop(); }

// ---- Membership ----

LocalStage::Set LocalStage::SetOf(const control::Epoch& epoch, const control::Member& self) {
  const uint32_t own_rank = static_cast<uint32_t>(self.rank());
  uint32_t first = 0;
  for (const uint32_t size : epoch.local_sizes()) {
    const bool here = own_rank >= first && own_rank - first < size;
    if (here && size <= static_cast<uint32_t>(epoch.workers_size()) - first) return {first, size};
    first += size;
  }
  return {};
}

void LocalStage::UseNext(Stage* next) {
  next_ = next;
  next->UseSink(static_cast<StageSink*>(this));
}

absl::Status LocalStage::Join(Time now, const control::Epoch& epoch, const control::Member& self) {
  const Set set = SetOf(epoch, self);
  if (set.size == 0) {
    return absl::InternalError("the coordinator's sets of workers that reduce among themselves lack this one");
  }
  inline_bytes_ = std::min<uint64_t>(epoch.inline_bytes(), MaxInline(caps_));
  if (inline_bytes_ != epoch.inline_bytes()) {
    return absl::InternalError("the coordinator's limit of inline payloads is more than this worker can send");
  }
  group_sizes_ = {set.size};
  if (next_ == nullptr) group_sizes_.assign(epoch.group_sizes().begin(), epoch.group_sizes().end());
  if (absl::Status status = neighbours_->Join(now, epoch, self, set.first, set.size); !status.ok()) return status;
  role_ = std::make_unique<LocalRole>(neighbours_.get(), next_ != nullptr, inline_bytes_);
  memory_ = std::make_unique<LocalMemory>(&endpoint_->transport(), neighbours_.get(), role_.get());
  offers_ = std::make_unique<LocalOffers>(endpoint_.get(), neighbours_.get(), role_.get(), memory_.get(),
                                          next_ != nullptr, inline_bytes_);
  work_.Join(&endpoint_->transport(), group_sizes_, neighbours_->size(), neighbours_->own());
  joined_ = true;
  return absl::OkStatus();
}

void LocalStage::OnReady(PeerId peer) {
  const size_t index = Neighbours::IndexOf(peer);
  if (absl::Status status = neighbours_->OnReady(index); !status.ok()) Lose(index, status);
}

// A member that has left the session in order, as all do at its end, is no loss.
void LocalStage::OnPeerDown(PeerId peer, const absl::Status& why) { Lose(Neighbours::IndexOf(peer), why); }

void LocalStage::Lose(size_t index, const absl::Status& why) {
  neighbours_->Lose(index, why);
  if (in_flight_ != 0 || !ready()) Fatal(why, neighbours_->member(index));
}

void LocalStage::Fatal(const absl::Status& why, uint32_t member) {
  work_.Halt();
  failing_.clear();  // all of them end now
  sink_->OnStageFatal(why, member);
}

// A member of this release never sends such a thing.
void LocalStage::ProtocolError(size_t index, const char* what) {
  Fatal(absl::InternalError(absl::StrCat(neighbours_->description(index), " sent ", what)));
}

// ---- Rounds ----

void LocalStage::OnAssigned(Tensor* tensor, std::span<const Tensor::Owed> given_up) {
  for (const Tensor::Owed& owed : given_up) {
    LocalRound* round = rounds_.FindOrMake(tensor->cut->key(), owed.round, neighbours_->size());
    if (round == nullptr) continue;
    GiveUp(round, owed.why, ReasonForOthers(owed.why), Cause::kHere);
    rounds_.Forget(wire::NameId(tensor->cut->key()), owed.round);
  }
}

// ---- Offering ----

bool LocalStage::TakesDevice(const Operation& operation, const Areas& areas) {
  return operation.by_gpus && next_ != nullptr && next_->TakesDevice(operation, areas);
}

void LocalStage::Begin(Time now, Operation* operation, const Areas& areas, PartRange range) {
  if (operation->by_gpus) return next_->Begin(now, operation, areas, range);
  now_ = now;
  ++in_flight_;
  LocalRound* round = rounds_.FindOrMake(operation->asked.tensor->cut->key(), operation->round, neighbours_->size());
  if (round == nullptr) {
    --in_flight_;
    return sink_->OnStageFatal(absl::InternalError(DescribeOperation(*operation) + " is over already"), 0);
  }
  round->operation = operation;
  round->areas = areas;
  round->awaited_parts = range.size();
  if (round->state() == LocalState::kRefused) return ready_.push_back(round);
  round->Move(LocalState::kGathering);
  operation->Note(TimelineEvent::kGathering, now);
  operation->asked.request->Advance(RequestState::kActive);
  if (const std::optional<size_t> lost = neighbours_->FirstLost()) return Lose(*lost, neighbours_->lost(*lost));
  const bool plain = areas.source.codec == 0 && areas.target.codec == 0 && areas.source.device.type == BPS_CPU &&
                     areas.target.device.type == BPS_CPU && areas.source.dtype == areas.target.dtype;
  if (!plain || range.size() != PartCount(*operation)) {
    FailSoon(round,
             absl::InternalError("the local stage reduces whole tensors of plain elements in this machine's "
                                 "memory, and was given others"),
             now);
  }
}

// The others read the tensor as a whole: it is offered when all of it is there.
void LocalStage::Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) {
  if (operation->by_gpus) return next_->Push(now, operation, part, source, target);
  now_ = now;
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr || round->state() != LocalState::kGathering || --round->awaited_parts != 0) return;
  if (absl::Status status = offers_->Prepare(round); !status.ok()) return FailSoon(round, status, now);
  round->to_show.first == round->to_show.last ? SendOffer(round) : NextPiece(round);
}

void LocalStage::SendOffer(LocalRound* round) {
  if (absl::Status status = offers_->Send(round); !status.ok()) return FailSoon(round, status, now_);
  if (round->AllOffered()) ready_.push_back(round);
}

// It is given up at this time, unless a member tells a better cause before.
void LocalStage::FailSoon(LocalRound* round, const absl::Status& why, Time at) {
  round->loss = why;
  round->fail_at = at;
  failing_.push_back(round);
}

void LocalStage::Send(size_t index, wire::RecordType type, std::span<const std::byte> fixed,
                      std::span<const std::byte> payload) {
  endpoint_->Send(Neighbours::PeerOf(index), type, fixed, payload);
}

// The end record of this member, to every other.
void LocalStage::SendEnd(const LocalRound& round, wire::RecordType type, int32_t code,
                         std::span<const std::byte> rest) {
  wire::RoundBody body{};
  body.key = round.name_id() << 16;
  body.round = round.number();
  body.rank = neighbours_->own_rank();
  body.code = code;
  body.text = static_cast<uint32_t>(rest.size());
  for (size_t index = 0; index < neighbours_->size(); ++index) {
    if (index != neighbours_->own()) Send(index, type, BytesOf(body), rest);
  }
}

void LocalStage::OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  const size_t index = Neighbours::IndexOf(peer);
  switch (type) {
    case wire::RecordType::kOffer:
      return OnOffer(index, body);
    case wire::RecordType::kProbe:
      if (!neighbours_->OnProbe(now_, index, body)) ProtocolError(index, "an invalid PROBE");
      return;
    case wire::RecordType::kReach:
      if (!neighbours_->OnReach(index, body)) ProtocolError(index, "an invalid REACH");
      return;
    case wire::RecordType::kDone:
    case wire::RecordType::kGiveUp:
      return OnEnd(index, type, body);
    case wire::RecordType::kGpuOffer:
    case wire::RecordType::kGpuHome:
    case wire::RecordType::kGpuOrder:
    case wire::RecordType::kGpuGiveUp:
      side_records_.push_back({index, type, {body.begin(), body.end()}});
      return;
    default:
      // Reserved for later versions, which ask only members that know them.
      BPS_LOG(*log_, kWarning) << neighbours_->description(index) << " sent a record of type " << static_cast<int>(type)
                               << ", which a worker of its host does not take";
  }
}

void LocalStage::OnOffer(size_t index, std::span<const std::byte> body) {
  Offer told;
  if (!ReadOffer(body, &told)) return ProtocolError(index, "an OFFER that is cut off");
  if (const char* wrong = offers_->Check(index, told)) return ProtocolError(index, wrong);
  LocalRound* round = rounds_.FindOrMake(told.body.key, told.body.round, neighbours_->size());
  if (round == nullptr) return;  // over: we have given it up
  LocalReport& report = round->reports[index];
  if (report.offered) return ProtocolError(index, "two OFFERs for one round");
  LocalOffers::Store(told, &report);
  if (round->state() == LocalState::kGathering && round->AllOffered()) Proceed(round);
}

// All members have offered.
void LocalStage::Proceed(LocalRound* round) {
  if (absl::Status status = offers_->Compare(*round); !status.ok()) return GiveUp(round, status, status, Cause::kHere);
  // From here on another member may know better than our clock which ranks are missing.
  if (next_ != nullptr) round->operation->known = true;
  if (!role_->Small(*round)) return BeginWork(round);
  if (next_ != nullptr) return ProceedSmall(round);
  if (FoldSmall(round)) Leave(round);
}

// ---- Small tensors ----

// Folds what was sent into the target, or copies it there. False: a member has sent nothing.
bool LocalStage::FoldSmall(LocalRound* round) {
  const Operation& operation = *round->operation;
  if (!IsPushPull(operation)) return role_->Root(operation) || CopyFrom(round, role_->Leader(operation));
  const std::optional<size_t> silent = work_.FoldSmall(round, next_ != nullptr);
  if (silent) ProtocolError(*silent, "an OFFER without its payload");
  return !silent;
}

bool LocalStage::CopyFrom(LocalRound* round, size_t index) {
  if (LocalWork::CopySmall(round, index)) return true;
  ProtocolError(index, "a record without its payload");
  return false;
}

// With servers: the leader speaks for all.
void LocalStage::ProceedSmall(LocalRound* round) {
  const Operation& operation = *round->operation;
  const size_t leader = role_->Leader(operation);
  round->Move(LocalState::kWorking);
  operation.Note(TimelineEvent::kWorking, now_);
  if (leader == neighbours_->own()) {
    if (IsPushPull(operation) && !FoldSmall(round)) return;
    return Contribute(round, {0, operation.asked.tensor->cut->parts()}, true);
  }
  // The root has sent its bytes to all of its host; any other leader's come back from the servers.
  const bool here = !IsPushPull(operation) && !role_->RootIsRemote(operation);
  if ((here || round->reports[leader].ended) && CopyFrom(round, leader)) Leave(round);
}

// ---- Large tensors ----

void LocalStage::BeginWork(LocalRound* round) {
  if (absl::Status error; !memory_->Reach(round, &error)) {
    if (!error.ok()) return GiveUp(round, error, ReasonForOthers(error), Cause::kHere);
    if (std::find(reaching_.begin(), reaching_.end(), round) == reaching_.end()) reaching_.push_back(round);
    return;
  }
  std::erase(reaching_, round);
  round->Move(LocalState::kWorking);
  const Operation& operation = *round->operation;
  operation.Note(TimelineEvent::kWorking, now_);
  const Cut& cut = *operation.asked.tensor->cut;
  const uint64_t bytes = round->bytes();
  const size_t own = neighbours_->own(), members = neighbours_->size();
  if (role_->Root(operation)) {
    // The others of its host read its input; those of other hosts get it from the servers.
    if (next_ != nullptr) Contribute(round, {0, cut.parts()}, true);
  } else if (!IsPushPull(operation) && !role_->RootIsRemote(operation)) {
    round->root = *neighbours_->Find(operation.asked.root);
    round->slice = {0, bytes};
  } else if (next_ == nullptr) {
    round->slice = SliceOf(bytes, own, members);
  } else if (const PartRange range = PartsOf(cut.parts(), round->name_id(), own, members); range.size() != 0) {
    round->to_spread = range.size();
    Contribute(round, range, role_->RootIsRemote(operation));
  }
  NextPiece(round);
}

// Parts of the target (or, at a root, of the source) go to the next stage: those that are ready, at once.
void LocalStage::Contribute(LocalRound* round, PartRange parts, bool all_ready) {
  Operation* operation = round->operation;
  Areas areas = round->areas;
  if (IsPushPull(*operation)) {
    areas.source = areas.target;
    areas.source_buffer = areas.target_buffer;
  }
  round->beyond = true;
  round->parts = parts;
  round->next_part = all_ready ? parts.last : parts.first;
  next_->Begin(now_, operation, areas, parts);
  for (uint32_t part = parts.first; part < round->next_part; ++part) PushOn(*round, part);
}

void LocalStage::PushOn(const LocalRound& round, uint32_t part) {
  const Cut& cut = *round.operation->asked.tensor->cut;
  const Payload& source = IsPushPull(*round.operation) ? round.areas.target : round.areas.source;
  next_->Push(now_, round.operation, part, PartOf(source, cut, part), PartOf(round.areas.target, cut, part));
}

LocalPiece LocalStage::PieceOf(const LocalRound& round, uint32_t part, LocalPiece::Kind kind) {
  const Cut& cut = *round.operation->asked.tensor->cut;
  const uint64_t size = DtypeSize(round.dtype());
  const uint64_t first = cut.first(part) * size;
  return {kind, first, first + cut.count(part) * size};
}

// The next piece of these bytes becomes the round's. False: there is none.
bool LocalStage::AddPiece(LocalRound* round, LocalPiece::Kind kind, Slice* bytes) {
  if (bytes->first == bytes->last) return false;
  const uint64_t end = std::min(bytes->last, bytes->first + LocalWork::kPieceBytes);
  work_.Add(now_, round, {kind, bytes->first, end});
  bytes->first = end;
  return true;
}

// A round without a piece gets its next one, or is done; or waits for the servers.
void LocalStage::NextPiece(LocalRound* round) {
  if (!round->loss.ok()) return;
  if (round->state() == LocalState::kGathering) {
    if (!AddPiece(round, LocalPiece::Kind::kShow, &round->to_show)) SendOffer(round);
    return;
  }
  if (round->state() == LocalState::kFinishing) {
    for (Slice& bytes : round->to_take) {
      if (AddPiece(round, LocalPiece::Kind::kTake, &bytes)) return;
    }
    return Leave(round);
  }
  const auto kind = IsPushPull(*round->operation) ? LocalPiece::Kind::kReduce : LocalPiece::Kind::kFetch;
  if (AddPiece(round, kind, &round->slice)) return;
  if (!round->spread.empty()) {
    work_.Add(now_, round, PieceOf(*round, round->spread.front(), LocalPiece::Kind::kSpread));
  } else if (round->next_part != round->parts.last) {
    work_.Add(now_, round, PieceOf(*round, round->next_part, LocalPiece::Kind::kFold));
  } else if (round->to_spread == 0) {
    FinishShare(round);
  }
}

void LocalStage::OnPiece(LocalRound* round) {
  if (round->piece.kind == LocalPiece::Kind::kFold) PushOn(*round, round->next_part++);
  if (round->piece.kind == LocalPiece::Kind::kSpread) {
    round->spread.pop_front();
    --round->to_spread;
  }
  NextPiece(round);
}

void LocalStage::OnPieceFailed(LocalRound* round, int32_t code, size_t culprit) {
  const std::string& who = neighbours_->description(culprit);
  if (code == BPS_UNAVAILABLE) {
    return Lose(culprit, absl::UnavailableError("the connection to " + who +
                                                " is lost: its memory cannot be read or written any more"));
  }
  // The member that ended the access tells why: it has given the round up, or its session has failed.
  work_.Withdraw(now_, round);
  FailSoon(round, MakeStatus(code, "the memory of " + who + " could not be read or written"), After(now_, kLossGrace));
}

void LocalStage::OnWorkFatal(const absl::Status& why) { Fatal(why); }

void LocalStage::FinishShare(LocalRound* round) {
  round->Move(LocalState::kFinishing);
  round->operation->Note(TimelineEvent::kFinishing, now_);
  round->reports[neighbours_->own()].ended = true;
  SendEnd(*round, wire::RecordType::kDone, BPS_OK, {});
  MaybeLeave(round);
}

// ---- Back from the servers ----

void LocalStage::OnPartHome(Operation* operation, uint32_t part, const Payload& result) {
  if (operation->by_gpus) return sink_->OnPartHome(operation, part, result);
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr || !round->failure.ok() || round->to_spread == 0) return;
  round->spread.push_back(part);
  if (round->task == 0) NextPiece(round);
}

void LocalStage::OnGivingUp(Operation* operation, const absl::Status& why, bool told) {
  if (operation->by_gpus) return sink_->OnGivingUp(operation, why, told);
  LocalRound* round = rounds_.FindOf(*operation);
  if (round != nullptr) GiveUp(round, why, told ? why : ReasonForOthers(why), Cause::kNextStage);
}

void LocalStage::OnStageDone(Operation* operation, const absl::Status& outcome) {
  if (operation->by_gpus) return sink_->OnStageDone(operation, outcome);
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr) return;
  round->beyond = false;
  if (!round->failure.ok() || !role_->Small(*round)) return MaybeLeave(round);
  if (!role_->Root(*operation)) {
    SendEnd(*round, wire::RecordType::kDone, BPS_OK, {round->areas.target.address, round->areas.target.bytes});
  }
  Leave(round);
}

// ---- Progress ----

bool LocalStage::Run(Time now) {
  if (stopped_) return false;
  now_ = now;
  bool worked = endpoint_->Poll(now);
  worked |= neighbours_->Answer(now);
  while (!ready_.empty()) {
    LocalRound* round = ready_.back();
    ready_.pop_back();
    worked = true;
    if (round->state() == LocalState::kRefused) {
      sink_->OnGivingUp(round->operation, round->failure, true);
      Leave(round);
    } else {
      Proceed(round);
    }
  }
  for (size_t i = 0; i < reaching_.size();) {
    LocalRound* round = reaching_[i];
    BeginWork(round);
    if (i < reaching_.size() && reaching_[i] == round) ++i;
  }
  worked |= work_.Run(now);
  for (size_t i = 0; i < failing_.size();) {
    LocalRound* round = failing_[i];
    if (now >= round->fail_at) {
      const absl::Status why = round->loss;
      GiveUp(round, why, ReasonForOthers(why), Cause::kHere);
    }
    if (i < failing_.size() && failing_[i] == round) ++i;
  }
  for (size_t i = 0; i < releasing_.size();) {
    LocalRound* round = releasing_[i];
    // Without the registration no process can reach the memory any more.
    if (now >= round->release_at) memory_->TakeAway(round);
    MaybeLeave(round);
    if (i < releasing_.size() && releasing_[i] == round) ++i;
  }
  return worked;
}

Time LocalStage::NextTimer() const {
  if (stopped_) return kNever;
  if (!ready_.empty()) return now_;
  Time next = std::min({endpoint_->NextTimer(), neighbours_->NextTimer(now_), work_.NextTimer(now_)});
  if (!reaching_.empty()) next = std::min(next, now_ + kReachInterval);
  for (const LocalRound* round : failing_) next = std::min(next, round->fail_at);
  for (const LocalRound* round : releasing_) {
    if (round->shown) next = std::min(next, round->release_at);
  }
  return next;
}

}  // namespace byteps
