#include "server/reducer/reducer.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/crc32c.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/wire/peer_number.h"
#include "core/wire/push_head.h"
#include "server/reducer/push_check.h"
#include "server/reducer/round_errors.h"

namespace byteps {
namespace {

constexpr Time kGrace = 500 * kMillisecond;

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
    spec.local_id = wire::PeerNumber(static_cast<uint32_t>(self->rank()), options_.lane);
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
  if (ResumeAwaitingMemory()) worked = true;
  if (AnswerUnanswered()) worked = true;
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
      return Violation(peer, link, absl::InvalidArgumentError("an invalid PROBE"));
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

void Reducer::OnPush(PeerId peer, const Link& sender, std::span<const std::byte> body) {
  Push push;
  Link link = sender;
  if (!ReadPush(body, &push)) return Violation(peer, link, absl::InvalidArgumentError("PUSH is cut off"));
  const wire::DataHeader& header = push.header;
  const bool asynchronous = header.operation == wire::Operation::kAsynchronous;
  if (asynchronous) link.contributor = 0;  // of rounds of its own
  const std::span<const std::byte> payload = push.payload;
  const PushLimits limits{link.rank,
                          static_cast<uint32_t>(link.session->workers.size()),
                          link.session->slot_bytes,
                          caps().key_size,
                          payload.size(),
                          (endpoint_.transport().CapsOf(peer).flags & BPS_TRANSPORT_COPY) != 0,
                          link.session->asynchronous};
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
  KeptValue* kept = nullptr;
  if (why.ok() && asynchronous) {
    kept = link.session->kept.FindOrMake(header.key, header.part, header.payload_bytes, link.session->workers.size());
    if (kept == nullptr) {
      Discard(header);
      return Violation(peer, link, absl::InvalidArgumentError("a PUSH of another size than the value has"));
    }
  }
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
  round->kept = kept;
  round->MergeHints(header);
  Take(round, link, header, payload);
}

// What was announced is not wanted: the slot is lent again when its bytes are there.
void Reducer::Discard(const wire::DataHeader& header) {
  if (header.way != wire::PayloadWay::kLanded) return;
  if (windows_.Announce(header.immediate, nullptr, 0)) windows_.Return(header.immediate);
}

Round* Reducer::RoundOf(const Link& link, const Push& push, absl::Status* why) {
  const wire::DataHeader& header = push.header;
  PartTable& parts = link.session->PartsOf(link.rank, header.operation == wire::Operation::kAsynchronous);
  Part* part = parts.FindOrMake(wire::NameId(header.key), header.part);
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
    *why = PastError(header.round, part->round, std::max(current, past), part->failed.get());
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
  part->table->SetBusy(part);
  part->round = round;
  const bool asynchronous = push.header.operation == wire::Operation::kAsynchronous;
  round->Begin(now_, link.session, part, push.header, asynchronous ? one_ : link.session->contributors, push.shape);
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
    round->ShortenDeadline(After(now_, FromMilliseconds(header.timeout_ms) + grace));
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
    // Asked for again.
    if (round->kept != nullptr && round->state() != RoundState::kGathering) return ApplyInPlace(round);
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
  if (round->kept != nullptr) return Apply(round, payload);
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

// Once all have announced, and everything that comes has come: what is next?
void Reducer::Settle(Round* round) {
  if (round->state() != RoundState::kGathering) return;
  const uint32_t here = round->here();
  if (here == round->contributors() && round->count(ContributionState::kAtWorker) != 0) {
    round->Move(RoundState::kReady);
    ready_.Add(round);
  } else if (here + round->count(ContributionState::kDropped) == round->contributors()) {
    AwaitMemory(round);
  }
}

// ---- Bookkeeping ----

// Off the lists of rounds that something can happen to.
void Reducer::Unlist(Round* round) {
  open_[round->open_index] = open_.back();
  open_[round->open_index]->open_index = round->open_index;
  open_.pop_back();
  if (round->state() == RoundState::kAwaitingMemory) std::erase(awaiting_memory_, round);
  if (round->kept != nullptr) {
    std::erase(round->kept->waiting, round);
    std::erase(unanswered_, round);
  }
  if (round->state() == RoundState::kReady) ready_.Remove(round);
  awaited_.Remove(round);
}

void Reducer::Close(Round* round) {
  Part* part = round->part();
  part->round = nullptr;
  part->table->SetIdle(part);
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
