#include "server/reducer.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/message.h"
#include "core/push_head.h"
#include "core/status.h"
#include "server/push_check.h"

namespace byteps {
namespace {

constexpr uint32_t kNobody = UINT32_MAX;
constexpr size_t kMostNames = 8;         // in one error
constexpr size_t kMostText = 4096;       // bytes of one error
constexpr size_t kWorthWaiting = 65536;  // bytes: to copy less takes no time
constexpr uint32_t kMostLanes = 64;      // per server, in the workers' numbers of their peers
constexpr Time kGrace = 500 * kMillisecond;
constexpr Time kLookInterval = 100'000;  // for memory that was announced before it was here

uint64_t NameId(uint64_t key) { return key >> 16; }

std::string DescribeWorker(const control::Member& member) {
  return absl::StrCat("rank ", member.rank(), " (worker, host ", member.host().name(), ", ", member.host().address(),
                      ", pid ", member.pid(), ")");
}

wire::RoundBody BodyOf(const wire::DataHeader& header) {
  wire::RoundBody body{};
  body.key = header.key;
  body.fingerprint = header.fingerprint;
  body.round = header.round;
  body.part = header.part;
  body.process_set = header.process_set;
  return body;
}

// "rank 1 (...), rank 2 (...) and 5 more" of those contributors of the round for which `which` holds. Of one that is
// absent and speaks for several workers, all of these: which of them is missing only they know.
template <typename Which>
std::string Names(const ServedSession& session, const Round& round, const Which& which) {
  std::string text;
  size_t count = 0;
  const auto add = [&](uint32_t rank) {
    if (++count <= kMostNames) absl::StrAppend(&text, text.empty() ? "" : ", ", session.workers[rank].description);
  };
  for (uint32_t index = 0; index < round.contributors(); ++index) {
    const Contribution& contribution = round.of(index);
    if (!which(contribution.state)) continue;
    if (contribution.state != ContributionState::kAbsent) {
      add(contribution.rank);
      continue;
    }
    for (uint32_t rank = session.contributors.first(index); rank < session.contributors.last(index); ++rank) add(rank);
  }
  if (count > kMostNames) absl::StrAppend(&text, " and ", count - kMostNames, " more");
  return text;
}

// Contributions whose bytes are here, or can be had at any time, or need not come.
uint32_t Here(const Round& round) {
  return round.count(ContributionState::kInSlot) + round.count(ContributionState::kParked) +
         round.count(ContributionState::kFolded) + round.count(ContributionState::kPresent) +
         round.count(ContributionState::kAtWorker);
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
  absl::StatusOr<Contributors> contributors = Contributors::Make(epoch);
  if (!contributors.ok()) return contributors.status();
  const auto workers = static_cast<uint64_t>(epoch.workers_size());
  if (epoch.slot_bytes() == 0 || epoch.slot_bytes() > options_.slot_bytes) {
    return absl::InternalError(absl::StrCat("session ", epoch.session_id(), " wants slots of ", epoch.slot_bytes(),
                                            " bytes; this server has ", options_.slot_bytes));
  }

  auto session = std::make_unique<ServedSession>(options_.most_idle_parts);
  session->id = epoch.session_id();
  session->slot_bytes = epoch.slot_bytes();
  session->contributors = *std::move(contributors);
  // As many slots as asked for, as long as they leave half of the memory for what waits.
  const uint64_t bytes_each = workers * session->slot_bytes;
  session->slots = static_cast<uint32_t>(
      std::clamp<uint64_t>(options_.memory / 2 / bytes_each, 1, std::max<uint32_t>(options_.slots_per_peer, 1)));
  while (!pool_.ReserveWindows(session->slots * bytes_each)) {
    if (session->slots == 1) {
      return absl::ResourceExhaustedError(
          absl::StrCat("BYTEPS_SERVER_MEMORY is too small: each lane has ", options_.memory, " bytes, of which ",
                       pool_.stats().windows + pool_.stats().chunks, " are in use; ", workers,
                       " workers with one slot of ", session->slot_bytes, " bytes each need ", bytes_each, " more"));
    }
    session->slots /= 2;
  }
  session->links = epoch.workers().size();
  ServedSession* served = session.get();
  sessions_[served->id] = std::move(session);
  for (const control::Member& worker : epoch.workers()) {
    served->workers.push_back({worker.member(), DescribeWorker(worker)});
    const auto rank = static_cast<uint32_t>(served->workers.size() - 1);
    links_[worker.member()] = {served, rank, served->contributors.of(rank)};
  }
  for (int rank = 0; rank < epoch.workers_size(); ++rank) {
    const control::Member& worker = epoch.workers(rank);
    PeerSpec spec;
    spec.session = epoch.session_id();
    spec.epoch = epoch.epoch();
    spec.session_nonce = epoch.nonce();
    spec.own_member = own_member;
    spec.own_lane = options_.lane;
    spec.member = worker.member();
    spec.lane = 0;
    for (const control::Lane& lane : worker.lanes()) {
      if (spec.address.empty() && lane.transport() == options_.transport) spec.address = lane.address();
    }
    spec.description = served->workers[rank].description;
    spec.local_id = 1 + static_cast<uint32_t>(self->rank()) * kMostLanes + options_.lane;
    spec.id = worker.member();
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
  BPS_VERBOSE(*log_, 1) << "lane " << options_.lane << ": session " << served->id << " with " << workers << " workers, "
                        << served->slots << " slots of " << served->slot_bytes << " bytes each";
  return absl::OkStatus();
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
    for (uint32_t index = 0; index < round->contributors(); ++index) Clear(round, index, ContributionState::kAbsent);
    Unlist(round);
    Close(round);
  }
}

bool Reducer::Poll(Time now) {
  now_ = now;
  bool worked = endpoint_.Poll(now);
  worked |= deliveries_.TookBack();
  if (probe_.Answer(now)) worked = true;
  if (FreeStuckSlots()) worked = true;
  if (LookForAwaited()) worked = true;
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
                   probe_.NextTimer(now_), look_at_, ready_.empty() ? kNever : now_});
}

// ---- Links ----

void Reducer::OnReady(PeerId peer) {
  auto it = links_.find(peer);
  if (it == links_.end() || it->second.session->ending) return;
  ServedSession* session = it->second.session;
  if (absl::Status status = windows_.Open(peer, session->slots, session->slot_bytes); !status.ok()) {
    Break(session, 0, status);
  }
}

void Reducer::OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  auto it = links_.find(peer);
  if (it == links_.end() || it->second.session->ending) return;
  const Link link = it->second;
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
  if (--session->links == 0 && session->ending) Erase(session->id);
}

void Reducer::Violation(PeerId peer, const Link& link, const absl::Status& what) {
  const ServedWorker& worker = link.session->workers[link.rank];
  OnPeerDown(peer, absl::UnavailableError(
                       absl::StrCat(worker.description, " broke the protocol: ", std::string(what.message()))));
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
  round->Raise(header.priority);
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
      Fail(part->round,
           absl::AbortedError(absl::StrCat(link.session->workers[link.rank].description,
                                           " has given this round up and gone on to round ", header.round)));
    }
  }
  const uint64_t current = part->round != nullptr ? part->round->number() : 0;
  if (part->failed != nullptr && part->failed->number == header.round) {
    *why = part->failed->why;
    return nullptr;
  }
  const uint64_t past = std::max(part->any_over ? part->over : 0, part->failed != nullptr ? part->failed->number : 0);
  if (header.round < current || (header.round <= past && (part->any_over || part->failed != nullptr))) {
    const std::string others =
        part->round == nullptr ? "the other ranks" : Names(*link.session, *part->round, [](ContributionState state) {
          return state != ContributionState::kAbsent;
        });
    *why = absl::AbortedError(
        absl::StrCat("round ", header.round, " is past: ", others, " went on to round ", std::max(current, past)));
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
    if (!at_worker && Here(*round) == round->contributors() && CompleteInOnePass(round, kNobody, nullptr)) return;
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
  if (use) Arrived(use->round, use->rank, nullptr);
}

// The bytes of a contribution are here: at `payload` for the length of this call, or, if that is null, in its slot.
void Reducer::Arrived(Round* round, uint32_t index, const std::byte* payload) {
  if (round->state() == RoundState::kRecalling) {
    if (index == round->next()) {
      Fold(round, index, payload);
    } else {
      Store(round, index, payload);
    }
    return Recall(round);
  }
  const bool at_worker = round->count(ContributionState::kAtWorker) != 0;
  if (!at_worker && Here(*round) + 1 == round->contributors() && CompleteInOnePass(round, index, payload)) return;
  Store(round, index, payload);
  Settle(round);
}

// Once everybody has announced, and everything that comes has come: what is next?
void Reducer::Settle(Round* round) {
  if (round->state() != RoundState::kGathering) return;
  const uint32_t here = Here(*round);
  if (here == round->contributors() && round->count(ContributionState::kAtWorker) != 0) {
    round->Move(RoundState::kReady);
    ready_.Add(round);
  } else if (here + round->count(ContributionState::kDropped) == round->contributors()) {
    Starve(round);
  }
}

PeerId Reducer::PeerOf(const Round& round, uint32_t index) {
  return round.session()->workers[round.of(index).rank].peer;
}

const std::byte* Reducer::PayloadOf(const Round& round, uint32_t index) const {
  const Contribution& contribution = round.of(index);
  return contribution.block ? contribution.block.data() : windows_.Memory(contribution.immediate).data();
}

// Gives back what holds the contribution.
void Reducer::Clear(Round* round, uint32_t index, ContributionState state) {
  Contribution& contribution = round->of(index);
  switch (contribution.state) {
    case ContributionState::kComing:
    case ContributionState::kInSlot:
      windows_.Abandon(contribution.immediate);
      break;
    case ContributionState::kParked:
      contribution.block.Reset();
      break;
    default:
      break;
  }
  round->SetState(index, state);
}

void Reducer::Fold(Round* round, uint32_t index, const std::byte* payload) {
  round->accumulator().Add(payload != nullptr ? payload : PayloadOf(*round, index));
  Clear(round, index, ContributionState::kFolded);
}

void Reducer::FoldPrefix(Round* round) {
  while (round->next() < round->last() && round->of(round->next()).waiting()) Fold(round, round->next(), nullptr);
}

// The same, and what is at its workers is fetched. False: it could not be, and the round is no more.
bool Reducer::FoldRest(Round* round) {
  for (FoldPrefix(round); round->next() < round->last(); FoldPrefix(round)) {
    const uint32_t index = round->next();
    if (round->of(index).state != ContributionState::kAtWorker) break;
    const WorkerMemory::Result result = memory_.Read(*round, index);
    if (Refused(round, result)) break;
    if (result.code != BPS_OK) return Unreachable(round, result), false;
    ++stats_.in_place;
    Fold(round, index, memory_.read());
  }
  return true;
}

// Keeps a contribution that cannot be used now.
void Reducer::Store(Round* round, uint32_t index, const std::byte* payload) {
  if (payload == nullptr) {
    // A worker with a single slot would come to a halt with each contribution; copying a small one costs less than a
    // halt.
    const bool last = windows_.Last(PeerOf(*round, index));
    if (!last || (round->bytes() >= kWorthWaiting && round->session()->slots > 1)) {
      windows_.Hold(now_, round->of(index).immediate);
      round->SetState(index, ContributionState::kInSlot);
      return;
    }
  }
  MoveOut(round, index, payload);
}

bool Reducer::FreeStuckSlots() {
  const std::vector<Windows::Use>& stuck = windows_.Stuck(now_);
  for (const Windows::Use& use : stuck) {
    // Moving one may have taken others with it.
    if (use.round != nullptr && use.round->of(use.rank).state == ContributionState::kInSlot) {
      MoveOut(use.round, use.rank, nullptr);
    }
  }
  return !stuck.empty();
}

// Takes a contribution out of its slot, or out of a message.
void Reducer::MoveOut(Round* round, uint32_t index, const std::byte* payload) {
  Contribution& contribution = round->of(index);
  if (!round->has_accumulator() && pool_.short_of_memory()) {
    // A prefix that takes more memory than its fold is folded.
    uint32_t count = 0;
    for (uint32_t next = round->first(); next < round->last(); ++next, ++count) {
      if (next != index && !round->of(next).waiting()) break;
    }
    if (count > 1 && index < round->first() + count && count * round->bytes() > round->accumulator_bytes()) {
      if (Block memory = pool_.Take(round->accumulator_bytes())) round->StartAccumulator(std::move(memory));
    }
  }
  if (round->has_accumulator()) {
    FoldPrefix(round);
    if (contribution.state == ContributionState::kFolded) return;
    if (round->next() == index) {
      Fold(round, index, payload);
      FoldPrefix(round);
      return;
    }
  }
  Block block = pool_.Take(round->bytes());
  if (!block) {
    ++stats_.dropped;
    Clear(round, index, ContributionState::kDropped);
    return;
  }
  ++stats_.parked;
  std::memcpy(block.data(), payload != nullptr ? payload : PayloadOf(*round, index), round->bytes());
  Clear(round, index, ContributionState::kParked);
  contribution.block = std::move(block);
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
    FoldPrefix(round);
    if (last != kNobody) Fold(round, last, payload);
    FoldPrefix(round);
    CompleteFromAccumulator(round);
    return true;
  }
  inputs_.clear();
  for (uint32_t index = round->first(); index < round->last(); ++index) {
    inputs_.push_back(index == last && payload != nullptr ? payload : PayloadOf(*round, index));
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
  // One whose slot was needed may have been dropped meanwhile.
  if (round->count(ContributionState::kDropped) != 0) {
    Starve(round);
  } else if (round->has_accumulator()) {
    if (!Reach(round) || !FoldRest(round)) return true;
    if (round->next() == round->last()) {
      CompleteFromAccumulator(round);
    } else {
      Starve(round);
    }
  } else if (!CompleteInPlace(round)) {
    Starve(round);
  }
  return true;
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
    inputs_.push_back(at_worker ? nullptr : PayloadOf(*round, index));
  }
  const WorkerMemory::Result result = memory_.Fold(*round, inputs_, !in_record, to);
  if (result.code == BPS_TRANSPORT_AGAIN && !result.begun) return Await(round), true;
  if (Refused(round, result)) return false;
  if (result.code != BPS_OK) return Unreachable(round, result), true;
  stats_.in_place += at_workers;
  stats_.mapped += result.mapped;
  Finish(round, std::move(block));
  return true;
}

bool Reducer::Reach(Round* round) {
  const WorkerMemory::Result result = memory_.Reach(*round);
  if (result.code == BPS_TRANSPORT_AGAIN) return Await(round), false;
  if (result.code != BPS_OK) return Unreachable(round, result), false;
  return true;
}

void Reducer::Await(Round* round) {
  if (std::find(awaited_.begin(), awaited_.end(), round) == awaited_.end()) awaited_.push_back(round);
  look_at_ = std::min(look_at_, now_ + kLookInterval);
}

// Rounds that stood aside go on if their memory is here.
bool Reducer::LookForAwaited() {
  if (now_ < look_at_) return false;
  look_at_ = kNever;
  // One that fails may take others with it.
  for (size_t count = awaited_.size(); count > 0 && !awaited_.empty(); --count) {
    Round* round = awaited_.front();
    awaited_.pop_front();
    if (round->state() == RoundState::kRecalling) {
      Recall(round);
    } else if (Reach(round)) {
      ready_.Add(round);
    }
  }
  return true;
}

// The system does not let us at this worker's memory any more, as it did when it was tried: from now on by slots. Nothing
// is lost if nothing was written yet: then its contribution is one that has to be asked for. False: that is not so.
bool Reducer::Refused(Round* round, const WorkerMemory::Result& result) {
  if (result.code != BPS_UNIMPLEMENTED) return false;
  probe_.Retract(PeerOf(*round, result.index));
  Contribution& contribution = round->of(result.index);
  if (result.begun || contribution.state != ContributionState::kAtWorker) return false;
  ++stats_.dropped;
  contribution.in_place = false;
  round->SetState(result.index, ContributionState::kDropped);
  return true;
}

// The memory of a worker cannot be read or written: the end of the round, or, if the worker is lost, of the session.
void Reducer::Unreachable(Round* round, const WorkerMemory::Result& result) {
  const int32_t code = result.code;
  const PeerId peer = PeerOf(*round, result.index);
  const std::string who = round->session()->workers[round->of(result.index).rank].description;
  if (code == BPS_UNAVAILABLE) {
    return OnPeerDown(peer, absl::UnavailableError(absl::StrCat("the connection to ", who, " is lost")));
  }
  const bool ours = code == BPS_UNIMPLEMENTED || code == BPS_NOT_FOUND || code == BPS_TRANSPORT_AGAIN;
  Fail(round,
       MakeStatus(ours ? BPS_ABORTED : code, absl::StrCat("the memory of ", who, " could not be read or written")));
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
    probe_.Retract(PeerOf(*round, result.index));
    round->of(result.index).in_place = false;
  }
  if (result.code != BPS_OK) return Unreachable(round, result);
  Deliver(round, std::move(block));
}

// Everything is folded. `block`: the result, unless it is in scratch_ or has been written in place.
void Reducer::Finish(Round* round, Block block) {
  for (uint32_t index = 0; index < round->contributors(); ++index) Clear(round, index, ContributionState::kFolded);
  if (round->bytes() <= inline_bytes_) return DeliverInline(round);
  Deliver(round, std::move(block));
}

// `block`: empty if everybody's output has been written in place.
void Reducer::Deliver(Round* round, Block block) {
  Result* result = block ? deliveries_.Make(std::move(block), round->bytes()) : nullptr;
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    const PeerId peer = PeerOf(*round, index);
    if (round->broadcast() && index == round->first()) {
      deliveries_.AddInline(peer, round->header(), {});
    } else if (round->of(index).in_place) {
      deliveries_.AddInPlace(peer, round->header(), round->bytes());
    } else {
      deliveries_.Add(peer, round->header(), round->of(index).memory, result);
    }
  }
  if (result != nullptr) deliveries_.Seal(result);
  Over(round);
}

// The result is in scratch_.
void Reducer::DeliverInline(Round* round) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(scratch_)).first(round->bytes());
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    const bool has_it = round->broadcast() && index == round->first();
    deliveries_.AddInline(PeerOf(*round, index), round->header(), has_it ? std::span<const std::byte>() : bytes);
  }
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
    round->Move(RoundState::kRecalling);
    Recall(round);
    worked = true;
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
  endpoint_.Send(PeerOf(*round, index), wire::RecordType::kSendAgain, BytesOf(body));
}

// ---- Failure ----

void Reducer::Fail(Round* round, const absl::Status& why) {
  Unlist(round);
  round->Move(RoundState::kFailed);
  ++stats_.failed;
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    if (round->of(index).state == ContributionState::kAbsent) continue;
    Clear(round, index, ContributionState::kAbsent);
    wire::RoundBody body = BodyOf(round->header());
    body.rank = round->of(index).rank;
    SendError(PeerOf(*round, index), body, why);
  }
  Part* part = round->part();
  part->failed = std::make_unique<FailedRound>(FailedRound{round->number(), why});
  Close(round);
}

void Reducer::FailMismatch(Round* round, uint32_t rank, const Push& push) {
  const ServedSession& session = *round->session();
  const std::string others =
      Names(session, *round, [](ContributionState state) { return state != ContributionState::kAbsent; });
  std::string theirs = round->DescribeAsked();
  std::string ours = DescribeRequest(push.header, push.shape);
  if (theirs == ours) {
    absl::StrAppend(&theirs, ", cut into ", round->header().parts, " parts");
    absl::StrAppend(&ours, ", cut into ", push.header.parts, " parts");
  }
  const std::string text =
      absl::StrCat("the ranks disagree: ", others, ": ", theirs, "; ", session.workers[rank].description, ": ", ours,
                   theirs == ours ? " (of another shape or scaling)" : "");
  const absl::Status why = absl::FailedPreconditionError(text);
  const PeerId peer = session.workers[rank].peer;
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
    if (deliveries_.Withdraw(peer, round.key, round.round, round.part)) {
      SendError(peer, round, absl::CancelledError("given up"));
    }
    return;
  }
  const size_t size = std::min<size_t>(round.text, kMostText);
  const absl::string_view reason(reinterpret_cast<const char*>(body.data() + sizeof round), size);
  // Where this worker only passes on what another server told it, the others hear the same, whoever is first.
  const int32_t code = round.code == BPS_OK || round.code == BPS_CANCELLED ? BPS_ABORTED : round.code;
  const std::string text = reason.find("gave up") != absl::string_view::npos
                               ? std::string(reason)
                               : absl::StrCat(link.session->workers[link.rank].description,
                                              " gave up: ", reason.empty() ? "no reason" : reason);
  FailNumber(peer, link, round, MakeStatus(code, text));
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
    Fail(part->round, absl::AbortedError(absl::StrCat(link.session->workers[link.rank].description,
                                                      " has given this round up and gone on to round ", round.round)));
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
      Fail(round, Overdue(*round));
      worked = true;
    } else {
      next_deadline_ = std::min(next_deadline_, round->deadline());
    }
  }
  return worked;
}

absl::Status Reducer::Overdue(const Round& round) const {
  const ServedSession& session = *round.session();
  const std::string absent =
      Names(session, round, [](ContributionState state) { return state == ContributionState::kAbsent; });
  const std::string coming = Names(session, round, [](ContributionState state) {
    return state == ContributionState::kComing || state == ContributionState::kAsked;
  });
  std::string text = absl::StrCat("after ", (now_ - round.opened()) / kMillisecond, " ms ");
  if (!absent.empty()) {
    const bool joint = session.contributors.joint();
    absl::StrAppend(&text, joint ? "not all of " : "", absent,
                    joint                                          ? " have submitted it"
                    : round.count(ContributionState::kAbsent) == 1 ? " has not submitted it"
                                                                   : " have not submitted it");
  } else if (!coming.empty()) {
    absl::StrAppend(&text, "the data of ", coming, " has not arrived");
  } else if (std::find(awaited_.begin(), awaited_.end(), &round) != awaited_.end()) {
    absl::StrAppend(&text, "memory that was shown to the server has not arrived there");
  } else if (round.state() == RoundState::kReady) {
    absl::StrAppend(&text, "the server has not come to fold it");
  } else {
    absl::StrAppend(&text, "the server has had no memory for it (BYTEPS_SERVER_MEMORY)");
  }
  return absl::DeadlineExceededError(text);
}

// ---- Bookkeeping ----

// Off the lists of rounds that something can happen to.
void Reducer::Unlist(Round* round) {
  open_[round->open_index] = open_.back();
  open_[round->open_index]->open_index = round->open_index;
  open_.pop_back();
  if (round->state() == RoundState::kStarved) std::erase(starved_, round);
  if (round->state() == RoundState::kReady) ready_.Remove(round);
  if (!awaited_.empty()) std::erase(awaited_, round);
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
