#include "server/reducer/reducer.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/crc32c.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/wire/push_head.h"
#include "server/reducer/push_check.h"
#include "server/reducer/round_errors.h"

namespace byteps {
namespace {

constexpr uint32_t kNobody = UINT32_MAX;
constexpr size_t kMostText = 4096;   // bytes of one error
constexpr uint32_t kMostLanes = 64;  // per server, in the workers' numbers of their peers
constexpr Time kGrace = 500 * kMillisecond;

uint64_t NameId(uint64_t key) { return key >> 16; }

wire::RoundBody BodyOf(const wire::DataHeader& header) {
  wire::RoundBody body{};
  body.key = header.key;
  body.fingerprint = header.fingerprint;
  body.round = header.round;
  body.part = header.part;
  body.process_set = header.process_set;
  return body;
}

}  // namespace

// ---- Life ----

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Make(Transport transport, const ReducerOptions& options,
                                                       Logger* log) {
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(transport), options, log));
  if (!reducer->pool_.ok().ok()) return reducer->pool_.ok();
  if (options.make_scheduler) {
    absl::StatusOr<Scheduler> scheduler = options.make_scheduler();
    if (!scheduler.ok()) return scheduler.status();
    reducer->deliveries_.UseScheduler(*std::move(scheduler));
  }
  return reducer;
}

Reducer::Reducer(Transport transport, const ReducerOptions& options, Logger* log)
    : options_(options),
      log_(log),
      endpoint_(std::move(transport), options.endpoint, this, log),
      pool_(&endpoint_.transport(), options.memory, options.slot_bytes),
      windows_(&endpoint_, &pool_),
      holdings_(&windows_, &pool_),
      deliveries_(&endpoint_),
      probe_(&endpoint_, "come through landing slots, unless they lie in the library's own buffers", log),
      memory_(&endpoint_.transport()),
      inline_bytes_(std::min<uint64_t>(options.inline_bytes, endpoint_.MaxRecord() - sizeof(wire::DataHeader))) {
  scratch_.resize((inline_bytes_ + 7) / 8 + 1);
}

Reducer::~Reducer() {
  for (const auto& [id, session] : sessions_) ForgetRounds(session.get());
}

absl::Status Reducer::AddSession(Time now, const control::Epoch& epoch, uint32_t own_member) {
  now_ = now;
  if (sessions_.contains(epoch.session_id())) {
    return absl::AlreadyExistsError(absl::StrCat("session ", epoch.session_id(), " is there already"));
  }
  const auto self = std::find_if(epoch.servers().begin(), epoch.servers().end(),
                                 [&](const control::Member& server) { return server.member() == own_member; });
  if (self == epoch.servers().end()) {
    return absl::InternalError(
        absl::StrCat("session ", epoch.session_id(), " does not name this server, member ", own_member));
  }
  absl::StatusOr<std::unique_ptr<ServedSession>> made =
      ServedSession::Make(epoch, {options_.slot_bytes, options_.slots_per_peer, options_.most_idle_parts}, &pool_);
  if (!made.ok()) return made.status();
  std::unique_ptr<ServedSession> session = *std::move(made);
  const auto workers = static_cast<uint64_t>(epoch.workers_size());
  session->links = epoch.workers().size();
  const uint64_t lanes = std::max(self->lanes_size(), 1);
  session->first_served = static_cast<uint32_t>((static_cast<uint64_t>(self->rank()) * lanes + options_.lane) *
                                                session->contributors.count() / (lanes * epoch.servers_size()));
  ServedSession* served = session.get();
  sessions_[served->id] = std::move(session);
  for (uint32_t rank = 0; rank < workers; ++rank) {
    links_[served->workers[rank].peer] = {served, rank, served->contributors.of(rank)};
  }
  for (int rank = 0; rank < epoch.workers_size(); ++rank) {
    const control::Member& worker = epoch.workers(rank);
    PeerSpec spec = served->LinkTo(epoch, rank, *self);
    spec.own_lane = options_.lane;
    spec.local_id = 1 + static_cast<uint32_t>(self->rank()) * kMostLanes + options_.lane;
    for (const control::Lane& lane : worker.lanes()) {
      if (spec.address.empty() && lane.transport() == options_.transport) spec.address = lane.address();
    }
    if (absl::Status status = endpoint_.AddPeer(now, spec); !status.ok()) {
      for (int other = rank; other < epoch.workers_size(); ++other) {
        links_.erase(epoch.workers(other).member());
        --served->links;
        pool_.GiveWindows(served->slots * served->slot_bytes);
      }
      EndSession(now, epoch.session_id());
      return status;
    }
  }
  TellPeers();
  BPS_VERBOSE(*log_, 1) << "lane " << options_.lane << ": session " << served->id << " with " << workers << " workers, "
                        << served->slots << " slots of " << served->slot_bytes << " bytes each";
  return absl::OkStatus();
}

void Reducer::TellPeers() {
  std::vector<PeerId> peers;
  for (const auto& [peer, link] : links_) peers.push_back(peer);
  std::sort(peers.begin(), peers.end());
  deliveries_.SetPeers(peers);
}

void Reducer::EndSession(Time now, uint64_t id) {
  now_ = now;
  auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second->ending) return;
  ServedSession* session = it->second.get();
  session->ending = true;
  ForgetRounds(session);
  for (const ServedWorker& worker : session->workers) {
    deliveries_.Drop(worker.peer);
    probe_.Forget(worker.peer);
    endpoint_.RemovePeer(worker.peer);
  }
  if (session->links == 0) Erase(id);
}

void Reducer::Erase(uint64_t session) {
  sessions_.erase(session);
  BPS_VERBOSE(*log_, 1) << "lane " << options_.lane << ": session " << session << " is gone";
}

void Reducer::ForgetRounds(const ServedSession* session) {
  for (size_t i = open_.size(); i-- > 0;) {
    Round* round = open_[i];
    if (round->session() != session) continue;
    for (uint32_t index = 0; index < round->contributors(); ++index) {
      holdings_.Clear(round, index, ContributionState::kAbsent);
    }
    Unlist(round);
    Close(round);
  }
}

bool Reducer::Poll(Time now) {
  now_ = now;
  bool worked = endpoint_.Poll(now);
  worked |= deliveries_.TookBack();
  if (probe_.Answer(now)) worked = true;
  if (holdings_.FreeStuckSlots(now)) worked = true;
  if (awaited_.Look(now, [this](Round* round) { GoOn(round); })) worked = true;
  if (FoldReady()) worked = true;
  if (FeedStarved()) worked = true;
  if (CheckDeadlines()) worked = true;
  if (deliveries_.Pump(now)) worked = true;
  if (const absl::Status& broken = deliveries_.status(); !broken.ok()) {
    for (const auto& [id, session] : sessions_) Break(session.get(), 0, broken);
  }
  return worked;
}

Time Reducer::NextTimer() const {
  return std::min({endpoint_.NextTimer(), next_deadline_, windows_.NextTimer(), deliveries_.NextTimer(),
                   probe_.NextTimer(now_), awaited_.NextTimer(), ready_.empty() ? kNever : now_});
}

// ---- Links ----

void Reducer::OnReady(PeerId peer) {
  auto it = links_.find(peer);
  if (it == links_.end() || it->second.session->ending) return;
  ServedSession* session = it->second.session;
  Guarded(session, [&] {
    if (absl::Status status = windows_.Open(peer, session->slots, session->slot_bytes); !status.ok()) {
      Break(session, 0, status);
    }
  });
}

void Reducer::OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  auto it = links_.find(peer);
  if (it == links_.end() || it->second.session->ending) return;
  const Link link = it->second;
  Guarded(link.session, [&] { OnRecordOf(peer, link, type, body); });
}

void Reducer::OnRecordOf(PeerId peer, const Link& link, wire::RecordType type, std::span<const std::byte> body) {
  switch (type) {
    case wire::RecordType::kPush:
      return OnPush(peer, link, body);
    case wire::RecordType::kCancel:
      return OnCancel(peer, link, body);
    case wire::RecordType::kProbe:
      if (probe_.OnProbe(now_, peer, link.session->workers[link.rank].description, body)) return;
      return Violation(peer, link, absl::InvalidArgumentError("a PROBE that makes no sense"));
    default:
      return Violation(peer, link,
                       absl::InvalidArgumentError(absl::StrCat("a record of type ", static_cast<int>(type))));
  }
}

void Reducer::OnWritten(PeerId, uint64_t user, int32_t) {
  // A write that failed is followed by the loss of its peer.
  deliveries_.OnWritten(user);
}

void Reducer::OnRoom(PeerId peer) { deliveries_.OnRoom(peer); }

void Reducer::OnPeerDown(PeerId peer, const absl::Status& why) {
  auto it = links_.find(peer);
  if (it == links_.end()) return;
  ServedSession* session = it->second.session;
  deliveries_.Drop(peer);
  probe_.Forget(peer);
  if (!session->ending) Break(session, peer, why);
  endpoint_.RemovePeer(peer);
}

void Reducer::OnRemoved(PeerId peer) {
  auto it = links_.find(peer);
  if (it == links_.end()) return;
  ServedSession* session = it->second.session;
  windows_.Close(peer);
  deliveries_.Drop(peer);
  probe_.Forget(peer);
  pool_.GiveWindows(session->slots * session->slot_bytes);
  links_.erase(it);
  TellPeers();
  if (--session->links == 0 && session->ending) Erase(session->id);
}

void Reducer::Violation(PeerId peer, const Link& link, const absl::Status& what) {
  const ServedWorker& worker = link.session->workers[link.rank];
  OnPeerDown(peer, absl::UnavailableError(
                       absl::StrCat(worker.description, " broke the protocol: ", std::string(what.message()))));
}

absl::Status Reducer::Unexpected(const char* what) const {
  return absl::InternalError(absl::StrCat("unexpected exception in lane ", options_.lane, " of the server: ", what));
}

void Reducer::BreakAll(const char* what) {
  const absl::Status why = Unexpected(what);
  for (const auto& [id, session] : sessions_) Break(session.get(), 0, why);
}

void Reducer::Break(ServedSession* session, uint32_t member, const absl::Status& why) {
  if (!session->failure.ok()) return;
  session->failure = why;
  broken_.push_back({session->id, member, why});
  BPS_LOG(*log_, kInfo) << "lane " << options_.lane << ": session " << session->id << ": " << why.message();
  for (size_t i = open_.size(); i-- > 0;) {
    if (i < open_.size() && open_[i]->session() == session) Fail(open_[i], why);
  }
}

// ---- Contributions ----

void Reducer::OnPush(PeerId peer, const Link& link, std::span<const std::byte> body) {
  Push push;
  if (!ReadPush(body, &push)) return Violation(peer, link, absl::InvalidArgumentError("PUSH is cut off"));
  const wire::DataHeader& header = push.header;
  const std::span<const std::byte> payload = push.payload;
  const PushLimits limits{link.rank,
                          static_cast<uint32_t>(link.session->workers.size()),
                          link.session->slot_bytes,
                          caps().key_size,
                          payload.size(),
                          (endpoint_.transport().CapsOf(peer).flags & BPS_TRANSPORT_COPY) != 0};
  const absl::Status status = CheckPush(header, limits);
  if (absl::IsInvalidArgument(status)) return Violation(peer, link, status);
  if (header.way == wire::PayloadWay::kLanded && !windows_.Expects(peer, header.immediate)) {
    return Violation(peer, link,
                     absl::InvalidArgumentError(absl::StrCat("PUSH names the immediate ", header.immediate,
                                                             ", which is none of its free slots")));
  }
  wire::MemoryRef source{};
  if (status.ok() && header.way == wire::PayloadWay::kInPlace &&
      (!ReadStruct(payload, &source) || source.key_size != caps().key_size)) {
    return Violation(peer, link, absl::InvalidArgumentError("PUSH in place names no memory"));
  }
  if (!status.ok()) {
    Discard(header);
    const absl::Status why(status.code(), absl::StrCat(link.session->workers[link.rank].description, ": ",
                                                       absl::string_view(status.message())));
    return FailNumber(peer, link, BodyOf(header), why);
  }
  absl::Status why = link.session->failure;
  Round* round = why.ok() ? RoundOf(link, push, &why) : nullptr;
  if (round == nullptr) {
    Discard(header);
    return SendError(peer, BodyOf(header), why);
  }
  const ContributionState state = round->of(link.contributor).state;
  if (state != ContributionState::kAbsent && state != ContributionState::kAsked) {
    Discard(header);
    return Violation(
        peer, link,
        absl::InvalidArgumentError(absl::StrCat("a second PUSH for round ", header.round, " of part ", header.part,
                                                ", the first is ", ContributionStateName(state))));
  }
  if (!SameRequest(round->header(), header)) {
    Discard(header);
    return FailMismatch(round, link.rank, push);
  }
  round->Hear(header);
  Take(round, link, header, payload);
}

// Nobody wants what was announced: the slot is lent again when its bytes are there.
void Reducer::Discard(const wire::DataHeader& header) {
  if (header.way != wire::PayloadWay::kLanded) return;
  if (windows_.Announce(header.immediate, nullptr, 0)) windows_.Return(header.immediate);
}

Round* Reducer::RoundOf(const Link& link, const Push& push, absl::Status* why) {
  const wire::DataHeader& header = push.header;
  Part* part = link.session->parts.FindOrMake(NameId(header.key), header.part);
  if (part->round != nullptr) {
    if (part->round->number() == header.round) return part->round;
    if (header.round > part->round->number()) {
      Fail(part->round, AbandonedError(link.session->workers[link.rank].description, header.round));
    }
  }
  const uint64_t current = part->round != nullptr ? part->round->number() : 0;
  if (part->failed != nullptr && part->failed->number == header.round) {
    *why = part->failed->why;
    return nullptr;
  }
  const uint64_t past = std::max(part->any_over ? part->over : 0, part->failed != nullptr ? part->failed->number : 0);
  if (header.round < current || (header.round <= past && (part->any_over || part->failed != nullptr))) {
    *why = PastError(header.round, part->round, std::max(current, past));
    return nullptr;
  }
  return NewRound(link, part, push);
}

Round* Reducer::NewRound(const Link& link, Part* part, const Push& push) {
  if (free_rounds_.empty()) {
    rounds_.push_back(std::make_unique<Round>());
    free_rounds_.push_back(rounds_.back().get());
  }
  Round* round = free_rounds_.back();
  free_rounds_.pop_back();
  link.session->parts.SetBusy(part);
  part->round = round;
  round->Begin(now_, link.session, part, push.header, link.session->contributors, push.shape);
  round->open_index = open_.size();
  open_.push_back(round);
  round->stall_told = false;
  next_deadline_ = std::min(next_deadline_, DueAt(*round));
  return round;
}

void Reducer::Take(Round* round, const Link& link, const wire::DataHeader& header, std::span<const std::byte> payload) {
  const uint32_t index = link.contributor;
  Contribution& contribution = round->of(index);
  contribution.rank = link.rank;
  contribution.key = header.key;
  contribution.memory = header.memory;
  if (header.timeout_ms != 0) {
    // The workers of a host know who of them is missing: their word is waited for.
    const Time grace = link.session->contributors.joint() ? kGrace : 0;
    round->Hurry(After(now_, FromMilliseconds(header.timeout_ms) + grace));
    next_deadline_ = std::min(next_deadline_, round->deadline());
  }
  contribution.in_place = false;
  contribution.checksum.reset();
  if ((header.flags & wire::kFlagChecksum) != 0) contribution.checksum = header.checksum;
  if (header.way == wire::PayloadWay::kLanded) {
    ++stats_.landed;
    contribution.immediate = header.immediate;
    round->SetState(index, ContributionState::kComing);
    if (windows_.Announce(header.immediate, round, index)) Arrived(round, index, nullptr);
    return;
  }
  if (header.way == wire::PayloadWay::kInPlace) {
    ReadStruct(payload, &contribution.source);
    contribution.in_place = true;
    round->SetState(index, ContributionState::kAtWorker);
    return round->state() == RoundState::kRecalling ? Recall(round) : Settle(round);
  }
  if (header.payload_bytes == 0) {
    round->SetState(index, ContributionState::kPresent);
    const bool at_worker = round->count(ContributionState::kAtWorker) != 0;
    if (!at_worker && round->here() == round->contributors() && CompleteInOnePass(round, kNobody, nullptr)) return;
    return Settle(round);
  }
  const std::byte* bytes = payload.data();
  if (reinterpret_cast<uintptr_t>(bytes) % alignof(uint64_t) != 0) {
    aligned_.resize((header.payload_bytes + 7) / 8);
    std::memcpy(aligned_.data(), bytes, header.payload_bytes);
    bytes = reinterpret_cast<const std::byte*>(aligned_.data());
  }
  Arrived(round, index, bytes);
}

void Reducer::OnLanded(uint32_t immediate) {
  const std::optional<Windows::Use> use = windows_.Land(immediate);
  if (!use) return;
  Guarded(use->round->session(), [&] { Arrived(use->round, use->rank, nullptr); });
}

bool Reducer::Unaltered(Round* round, uint32_t index, const std::byte* payload) {
  const std::optional<uint32_t> told = round->of(index).checksum;
  if (!told) return true;
  const std::byte* bytes = payload != nullptr ? payload : windows_.Memory(round->of(index).immediate).data();
  const uint32_t found = Crc32c({bytes, round->bytes()});
  if (found == *told) return true;
  const uint32_t rank = round->of(index).rank;
  const absl::Status why = absl::DataLossError(
      absl::StrCat("what ", round->session()->workers[rank].description, " has sent for part ", round->header().part,
                   " came altered to ", "the server: its checksum is ", found, ", that of what was sent ", *told,
                   " (BYTEPS_CHECKSUM): a network card, its driver or memory"));
  BPS_LOG(*log_, kWarning) << "lane " << options_.lane << ": " << std::string(why.message());
  holdings_.Store(now_, round, index, payload);  // its slot is given back as that of any other
  Fail(round, why);
  return false;
}

// The bytes of a contribution are here: at `payload` for the length of this call, or, if that is null, in its slot.
void Reducer::Arrived(Round* round, uint32_t index, const std::byte* payload) {
  if (!Unaltered(round, index, payload)) return;
  if (round->state() == RoundState::kRecalling) {
    if (index == round->next()) {
      holdings_.Fold(round, index, payload);
    } else {
      holdings_.Store(now_, round, index, payload);
    }
    return Recall(round);
  }
  const bool at_worker = round->count(ContributionState::kAtWorker) != 0;
  if (!at_worker && round->here() + 1 == round->contributors() && CompleteInOnePass(round, index, payload)) return;
  holdings_.Store(now_, round, index, payload);
  Settle(round);
}

// Once everybody has announced, and everything that comes has come: what is next?
void Reducer::Settle(Round* round) {
  if (round->state() != RoundState::kGathering) return;
  const uint32_t here = round->here();
  if (here == round->contributors() && round->count(ContributionState::kAtWorker) != 0) {
    round->Move(RoundState::kReady);
    ready_.Add(round);
  } else if (here + round->count(ContributionState::kDropped) == round->contributors()) {
    Starve(round);
  }
}

// The same, and what is at its workers is fetched. False: it could not be, and the round is no more.
bool Reducer::FoldRest(Round* round) {
  for (holdings_.FoldPrefix(round); round->next() < round->last(); holdings_.FoldPrefix(round)) {
    const uint32_t index = round->next();
    if (round->of(index).state != ContributionState::kAtWorker) break;
    const WorkerMemory::Result result = memory_.Read(*round, index);
    if (Refused(round, result)) break;
    if (result.code != BPS_OK) return Unreachable(round, result), false;
    ++stats_.in_place;
    holdings_.Fold(round, index, memory_.read());
  }
  return true;
}

// ---- Completion ----

// Folds everything into the result; `last` has its bytes at `payload`, or in its slot. False without memory for
// it: then nothing has happened.
bool Reducer::CompleteInOnePass(Round* round, uint32_t last, const std::byte* payload) {
  if (round->bytes() == 0) {
    DeliverInline(round);
    return true;
  }
  if (round->has_accumulator()) {
    holdings_.FoldPrefix(round);
    if (last != kNobody) holdings_.Fold(round, last, payload);
    holdings_.FoldPrefix(round);
    CompleteFromAccumulator(round);
    return true;
  }
  inputs_.clear();
  for (uint32_t index = round->first(); index < round->last(); ++index) {
    inputs_.push_back(index == last && payload != nullptr ? payload : holdings_.PayloadOf(*round, index));
  }
  const bool in_record = round->bytes() <= inline_bytes_;
  Block block;
  void* output = scratch_.data();
  if (!in_record) {
    // The first input's own block can hold the result.
    block = std::move(round->of(round->first()).block);
    if (!block) block = pool_.Take(round->bytes());
    if (!block) return false;
    output = block.data();
  }
  Reduce(round->reduction(), inputs_, round->groups(), output, round->elements());
  Finish(round, std::move(block));
  return true;
}

// Folds the first of the rounds that only wait for that.
bool Reducer::FoldReady() {
  if (ready_.empty()) return false;
  Round* round = ready_.Take();
  Guarded(round->session(), [&] { Complete(round); });
  return true;
}

void Reducer::Complete(Round* round) {
  // One whose slot was needed may have been dropped meanwhile.
  if (round->count(ContributionState::kDropped) != 0) {
    Starve(round);
  } else if (round->has_accumulator()) {
    if (!Reach(round) || !FoldRest(round)) return;
    if (round->next() == round->last()) {
      CompleteFromAccumulator(round);
    } else {
      Starve(round);
    }
  } else if (!CompleteInPlace(round)) {
    Starve(round);
  }
}

// Folds everything from where it is, block by block, and writes each block to where it is wanted in place. False
// without memory for the result of those who want it elsewhere, or if a contribution must be asked for: then nothing has
// happened.
bool Reducer::CompleteInPlace(Round* round) {
  const bool in_record = round->bytes() <= inline_bytes_;
  bool elsewhere = false;
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    elsewhere |= !round->of(index).in_place;
  }
  Block block;
  std::byte* to = nullptr;
  if (in_record) {
    to = reinterpret_cast<std::byte*>(scratch_.data());
  } else if (elsewhere) {
    block = pool_.Take(round->bytes());
    if (!block) return false;
    to = block.data();
  }
  inputs_.clear();
  uint32_t at_workers = 0;
  for (uint32_t index = round->first(); index < round->last(); ++index) {
    const bool at_worker = round->of(index).state == ContributionState::kAtWorker;
    if (at_worker) ++at_workers;
    inputs_.push_back(at_worker ? nullptr : holdings_.PayloadOf(*round, index));
  }
  const WorkerMemory::Result result = memory_.Fold(*round, inputs_, !in_record, to);
  if (result.code == BPS_TRANSPORT_AGAIN && !result.begun) return awaited_.Add(now_, round), true;
  if (Refused(round, result)) return false;
  if (result.code != BPS_OK) return Unreachable(round, result), true;
  stats_.in_place += at_workers;
  stats_.mapped += result.mapped;
  Finish(round, std::move(block));
  return true;
}

bool Reducer::Reach(Round* round) {
  const WorkerMemory::Result result = memory_.Reach(*round);
  if (result.code == BPS_TRANSPORT_AGAIN) return awaited_.Add(now_, round), false;
  if (result.code != BPS_OK) return Unreachable(round, result), false;
  return true;
}

// Rounds that stood aside go on if their memory is here.
void Reducer::GoOn(Round* round) {
  if (round->state() == RoundState::kRecalling) {
    Recall(round);
  } else if (Reach(round)) {
    ready_.Add(round);
  }
}

// The system does not let us at this worker's memory any more, as it did when it was tried: from now on by slots. Nothing
// is lost if nothing was written yet: then its contribution is one that has to be asked for. False: that is not so.
bool Reducer::Refused(Round* round, const WorkerMemory::Result& result) {
  if (result.code != BPS_UNIMPLEMENTED) return false;
  probe_.Retract(WorkerOf(*round, result.index).peer);
  Contribution& contribution = round->of(result.index);
  if (result.begun || contribution.state != ContributionState::kAtWorker) return false;
  ++stats_.dropped;
  contribution.in_place = false;
  round->SetState(result.index, ContributionState::kDropped);
  return true;
}

// The memory of a worker cannot be read or written: the end of the round, or, if the worker is lost, of the session. Who has
// taken it away says next why: he has given the round up, or his session has failed. It is that which the others should hear.
void Reducer::Unreachable(Round* round, const WorkerMemory::Result& result) {
  const int32_t code = result.code;
  const PeerId peer = WorkerOf(*round, result.index).peer;
  const std::string who = WorkerOf(*round, result.index).description;
  if (code == BPS_UNAVAILABLE) {
    return OnPeerDown(peer, absl::UnavailableError(absl::StrCat("the connection to ", who, " is lost")));
  }
  const bool ours = code == BPS_UNIMPLEMENTED || code == BPS_NOT_FOUND || code == BPS_TRANSPORT_AGAIN;
  round->Doom(
      MakeStatus(ours ? BPS_ABORTED : code, absl::StrCat("the memory of ", who, " could not be read or written")));
  round->Hurry(After(now_, kLossGrace));
  next_deadline_ = std::min(next_deadline_, round->deadline());
}

void Reducer::CompleteFromAccumulator(Round* round) {
  if (round->bytes() <= inline_bytes_) {
    round->accumulator().Finish(scratch_.data());
    round->TakeAccumulator();
    return DeliverInline(round);
  }
  Accumulation fold = round->accumulator();
  Block block = round->TakeAccumulator();
  fold.Finish(block.data());
  WorkerMemory::Result result = memory_.Write(*round, block.data());
  // Who cannot be written to gets it as those do whose contribution came by a slot.
  for (; result.code == BPS_UNIMPLEMENTED; result = memory_.Write(*round, block.data())) {
    probe_.Retract(WorkerOf(*round, result.index).peer);
    round->of(result.index).in_place = false;
  }
  if (result.code != BPS_OK) return Unreachable(round, result);
  Deliver(round, std::move(block));
}

// Everything is folded. `block`: the result, unless it is in scratch_ or has been written in place.
void Reducer::Finish(Round* round, Block block) {
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    holdings_.Clear(round, index, ContributionState::kFolded);
  }
  if (round->bytes() <= inline_bytes_) return DeliverInline(round);
  Deliver(round, std::move(block));
}

void Reducer::Deliver(Round* round, Block block) {
  deliveries_.AddResult(*round, std::move(block));
  Over(round);
}

// The result is in scratch_.
void Reducer::DeliverInline(Round* round) {
  deliveries_.AddInlineResult(*round, std::as_bytes(std::span(scratch_)).first(round->bytes()));
  Over(round);
}

void Reducer::Over(Round* round) {
  round->Move(RoundState::kOver);
  ++stats_.rounds;
  stats_.bytes += round->bytes();
  Part* part = round->part();
  part->any_over = true;
  part->over = round->number();
  part->failed.reset();
  Unlist(round);
  Close(round);
}

// ---- Short of memory ----

void Reducer::Starve(Round* round) {
  round->Move(RoundState::kStarved);
  starved_.push_back(round);
}

bool Reducer::FeedStarved() {
  bool worked = false;
  while (!starved_.empty()) {
    Round* round = starved_.front();
    if (!round->has_accumulator()) {
      Block memory = pool_.Take(round->accumulator_bytes());
      if (!memory) memory = pool_.TakeReserve();
      if (!memory) break;
      round->StartAccumulator(std::move(memory));
    }
    starved_.pop_front();
    worked = true;
    Guarded(round->session(), [&] {
      round->Move(RoundState::kRecalling);
      Recall(round);
    });
  }
  return worked;
}

// Folds what can be folded, and asks for the next.
void Reducer::Recall(Round* round) {
  if (!Reach(round) || !FoldRest(round)) return;
  if (round->next() == round->last()) return CompleteFromAccumulator(round);
  const uint32_t index = round->next();
  if (round->of(index).state != ContributionState::kDropped) return;
  round->SetState(index, ContributionState::kAsked);
  wire::RoundBody body = BodyOf(round->header());
  body.rank = round->of(index).rank;
  ++stats_.sent_again;
  endpoint_.Send(WorkerOf(*round, index).peer, wire::RecordType::kSendAgain, BytesOf(body));
}

// ---- Failure ----

void Reducer::Fail(Round* round, const absl::Status& why) {
  Unlist(round);
  round->Move(RoundState::kFailed);
  ++stats_.failed;
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    if (round->of(index).state == ContributionState::kAbsent) continue;
    holdings_.Clear(round, index, ContributionState::kAbsent);
    wire::RoundBody body = BodyOf(round->header());
    body.rank = round->of(index).rank;
    SendError(WorkerOf(*round, index).peer, body, why);
  }
  Part* part = round->part();
  part->failed = std::make_unique<FailedRound>(FailedRound{round->number(), why});
  Close(round);
}

void Reducer::FailMismatch(Round* round, uint32_t rank, const Push& push) {
  const absl::Status why = MismatchError(*round, rank, push);
  const PeerId peer = round->session()->workers[rank].peer;
  Fail(round, why);
  SendError(peer, BodyOf(push.header), why);
}

void Reducer::OnCancel(PeerId peer, const Link& link, std::span<const std::byte> body) {
  wire::RoundBody round;
  if (!ReadStruct(body, &round) || round.text > body.size() - sizeof round || round.rank != link.rank) {
    return Violation(peer, link, absl::InvalidArgumentError("CANCEL that makes no sense"));
  }
  if (!link.session->failure.ok()) return SendError(peer, round, link.session->failure);
  Part* part = link.session->parts.Find(NameId(round.key), round.part);
  if (part != nullptr && part->any_over && round.round <= part->over) {
    // Its result is with the worker, or on its way: RESULT is the answer. Unless nothing of it was sent.
    const std::optional<std::string> kept = deliveries_.Withdraw(peer, round.key, round.round, round.part);
    if (!kept) return;
    // One line for all parts of a tensor.
    const Kept late(round.key, round.round);
    if (round.code == BPS_DEADLINE_EXCEEDED && std::exchange(kept_, late) != late) {
      BPS_LOG(*log_, kWarning) << "lane " << options_.lane << ": " << link.session->workers[link.rank].description
                               << " gives a tensor up after its whole time; of part " << round.part << ": " << *kept;
    }
    SendError(peer, round, absl::CancelledError(absl::StrCat("given up: ", *kept)));
    return;
  }
  const size_t size = std::min<size_t>(round.text, kMostText);
  const std::string_view reason(reinterpret_cast<const char*>(body.data() + sizeof round), size);
  FailNumber(peer, link, round, GivenUpError(link.session->workers[link.rank].description, round.code, reason));
}

void Reducer::FailNumber(PeerId peer, const Link& link, const wire::RoundBody& round, const absl::Status& why) {
  if (!link.session->failure.ok()) return SendError(peer, round, link.session->failure);
  Part* part = link.session->parts.FindOrMake(NameId(round.key), round.part);
  if (part->round != nullptr && part->round->number() == round.round) {
    const Contribution& contribution = part->round->of(link.contributor);
    const bool told = contribution.state != ContributionState::kAbsent && contribution.rank == link.rank;
    Fail(part->round, why);
    if (!told) SendError(peer, round, why);
    return;
  }
  if (part->round != nullptr && part->round->number() < round.round) {
    Fail(part->round, AbandonedError(link.session->workers[link.rank].description, round.round));
  }
  const bool news = part->round == nullptr && (!part->any_over || part->over < round.round) &&
                    (part->failed == nullptr || part->failed->number < round.round);
  if (news) part->failed = std::make_unique<FailedRound>(FailedRound{round.round, why});
  if (part->round == nullptr) link.session->parts.SetIdle(part);
  SendError(peer, round, why);
}

void Reducer::SendError(PeerId peer, wire::RoundBody round, const absl::Status& why) {
  const size_t room = std::min(kMostText, endpoint_.MaxRecord() - sizeof round);
  const absl::string_view text = why.message().substr(0, room);
  round.code = StatusCode(why);
  round.text = static_cast<uint32_t>(text.size());
  const auto link = links_.find(peer);
  const bool over = link != links_.end() && !link->second.session->failure.ok();
  round.flags = over ? wire::kFlagSessionOver : 0;
  endpoint_.Send(peer, wire::RecordType::kError, BytesOf(round),
                 std::as_bytes(std::span<const char>(text.data(), text.size())));
}

bool Reducer::CheckDeadlines() {
  if (now_ < next_deadline_) return false;
  bool worked = false;
  next_deadline_ = kNever;
  for (size_t i = open_.size(); i-- > 0;) {
    Round* round = open_[i];
    if (round->deadline() <= now_) {
      Fail(round, round->doom().ok() ? OverdueError(now_, *round, awaited_.Contains(*round)) : round->doom());
      worked = true;
    } else {
      if (DueAt(*round) <= now_) TellStall(round);
      next_deadline_ = std::min(next_deadline_, DueAt(*round));
    }
  }
  return worked;
}

Time Reducer::DueAt(const Round& round) const {
  if (round.stall_told) return round.deadline();
  return std::min(round.deadline(), After(round.opened(), options_.stall_warning));
}

void Reducer::TellStall(Round* round) {
  round->stall_told = true;
  if (round->all_announced()) return;
  const std::string text = StallText(now_, *round).substr(0, kMostText);
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    const Contribution& contribution = round->of(index);
    if (contribution.state == ContributionState::kAbsent) continue;
    wire::RoundBody body = BodyOf(round->header());
    body.key = contribution.key;
    body.text = static_cast<uint32_t>(text.size());
    endpoint_.Send(WorkerOf(*round, index).peer, wire::RecordType::kStalled, BytesOf(body),
                   std::as_bytes(std::span<const char>(text.data(), text.size())));
  }
}

// ---- Bookkeeping ----

// Off the lists of rounds that something can happen to.
void Reducer::Unlist(Round* round) {
  open_[round->open_index] = open_.back();
  open_[round->open_index]->open_index = round->open_index;
  open_.pop_back();
  if (round->state() == RoundState::kStarved) std::erase(starved_, round);
  if (round->state() == RoundState::kReady) ready_.Remove(round);
  awaited_.Remove(round);
}

void Reducer::Close(Round* round) {
  Part* part = round->part();
  part->round = nullptr;
  round->session()->parts.SetIdle(part);
  round->End();
  free_rounds_.push_back(round);
}

ReducerStats Reducer::stats() const {
  ReducerStats stats = stats_;
  stats.open = open_.size();
  for (const auto& [id, session] : sessions_) stats.parts += session->parts.size();
  stats.parked = holdings_.parked();
  stats.dropped += holdings_.dropped();
  stats.pool = pool_.stats();
  return stats;
}

std::string Reducer::Describe() const {
  std::string text;
  for (const auto& [id, session] : sessions_) {
    absl::StrAppend(&text, "session ", id, ": ", session->workers.size(), " workers, ", session->parts.size(), " parts",
                    session->ending ? ", ending" : "", session->failure.ok() ? "" : ", broken", "\n");
  }
  for (const Round* round : open_) absl::StrAppend(&text, round->Describe(), "\n");
  return text;
}

}  // namespace byteps
