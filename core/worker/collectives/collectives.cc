#include "core/worker/collectives/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/worker/collectives/peer_memory.h"

namespace byteps {
namespace {

// Writes to one peer that may be on their way: enough to keep a link busy, few enough for what is urgent to come soon.
constexpr uint32_t kMostWrites = 8;
// Folds and copies in one Run: none takes longer than a chunk, and links are looked at between.
constexpr int kMostComputing = 4;

}  // namespace

Collectives::Collectives(CollectivesOptions options, PeerLinks::Open open, CollectivesSink* sink, Logger* log)
    : options_(std::move(options)),
      sink_(sink),
      links_(options_.endpoint, std::move(open), static_cast<PeerLinksHandler*>(this), log),
      joins_(&links_, static_cast<JoinsHandler*>(this)) {}

Collectives::~Collectives() { Stop(absl::CancelledError("the session was closed")); }

void Collectives::Start(const control::Epoch& epoch, const control::Member& self) {
  epoch_ = epoch;
  job_size_ = static_cast<uint32_t>(epoch.workers_size());
  own_rank_ = self.rank();
  writes_.assign(job_size_, 0);
  links_.Join(epoch_, self);
  joins_.Start(job_size_, own_rank_);
}

void Collectives::StartAlone() {
  writes_.assign(1, 0);
  joins_.Start(1, 0);
}

// ---- Submissions ----

absl::Status Collectives::Admit(const Collective& asked) {
  const absl::Status checked = asked.given_up.ok() ? Check(asked, own_rank_) : CheckRequest(asked, own_rank_);
  if (!checked.ok()) return checked;
  if (absl::Status status = joins_.CheckMaySubmit(); !status.ok()) return Annotate(status, asked.Describe());
  return Take(asked);
}

// Uses the place of its name in flight.
template <typename Use>
bool Collectives::WithPlace(const Collective& asked, const Use& use) const {
  if (asked.shares_name()) return use(sink_->OnName(asked.name)->place());
  std::lock_guard<std::mutex> lock(names_mutex_);
  const auto place = places_.try_emplace(asked.id(own_rank_)).first;
  const bool used = use(place->second);
  if (place->second.idle()) places_.erase(place);
  return used;
}

// Its name's place in flight, or that it waits for it.
absl::Status Collectives::Take(const Collective& asked) {
  if (!IsPairwise(asked.kind)) {
    if (asked.shares_name() && sink_->OnName(asked.name)->asynchronous.load(std::memory_order_relaxed)) {
      return absl::FailedPreconditionError(absl::StrCat("\"", asked.name,
                                                        "\" is an asynchronous tensor, whose rounds "
                                                        "are each rank's own; a collective needs another name"));
    }
    const bool waits = !asked.given_up.ok();
    const bool entered = WithPlace(asked, [&](FlightPlace& place) {
      if (waits) place.Await();
      return waits || place.Enter();
    });
    if (!entered) {
      return Retryable(absl::AlreadyExistsError(absl::StrCat(
          "an operation \"", asked.name, "\" of ", asked.set->Describe(), " is still in flight on this rank")));
    }
  }
  asked.set->Enter();
  return absl::OkStatus();
}

void Collectives::Withdraw(const Collective& asked) {
  if (asked.given_up.ok() || IsPairwise(asked.kind)) return LeavePlace(asked);
  WithPlace(asked, [](FlightPlace& place) { return place.Forgo(), true; });
  asked.set->Leave();
}

// Of one that had it.
void Collectives::LeavePlace(const Collective& asked) {
  if (!IsPairwise(asked.kind)) WithPlace(asked, [](FlightPlace& place) { return place.Leave(), true; });
  asked.set->Leave();
}

void Collectives::Submit(Time now, Collective asked) {
  if (asked.given_up.ok() || IsPairwise(asked.kind)) return BeginRound(now, std::move(asked));
  if (stopped_) {
    Withdraw(asked);
    return sink_->OnCollectiveDone(std::move(asked.request), stop_cause_);
  }
  given_up_.push_back(std::move(asked));
  RunGivenUp(now);
}

// A round that is given up comes behind the operation of its name that is in flight.
bool Collectives::RunGivenUp(Time now) {
  bool worked = false;
  for (auto next = given_up_.begin(); next != given_up_.end() && !stopped_ && !fatal_;) {
    if (!WithPlace(*next, [](FlightPlace& place) { return place.TakeTurn(); })) {
      ++next;
      continue;
    }
    worked = true;
    Collective asked = std::move(*next);
    next = given_up_.erase(next);
    BeginRound(now, std::move(asked));
  }
  return worked;
}

// With the place of its name.
void Collectives::BeginRound(Time now, Collective asked) {
  now_ = now;
  const uint64_t id = asked.id(own_rank_);
  if (asked.shares_name()) rounds_.Advance(id, sink_->OnName(asked.name)->rounds++);
  PeerRound* round = rounds_.Submit(id);
  requests_[asked.request.get()] = round;
  asked.request->Advance(RequestState::kActive);
  round->Start(std::move(asked), own_rank_, now);
  if (round->asked().gpu != nullptr) copies_->Begin(now, round->asked(), own_rank_, round->deadline());
  if (stopped_) return Leave(round, stop_cause_);
  if (round->state() == PeerRoundState::kRefused) {
    const absl::Status& why = round->asked().given_up.ok() ? round->failure() : round->asked().given_up;
    return Leave(round, Retryable(Annotate(why, round->asked().Describe())));
  }
  alarms_.emplace(round->deadline(), round->serial());
  for (const int32_t rank : round->ranks()) {
    if (rank == own_rank_) continue;
    links_.Want(now, static_cast<uint32_t>(rank));
    if (stopped_ || fatal_) return;
    if (const absl::Status& lost = links_.lost(static_cast<uint32_t>(rank)); !lost.ok()) {
      return Fatal(lost, links_.member(static_cast<uint32_t>(rank)));
    }
  }
  const absl::Status given_up = round->asked().given_up;
  if (!round->held() && given_up.ok()) Announce(round);
  if (joins_.any_absent()) {
    for (const uint32_t rank : joins_.absent()) {
      if (!round->asked().set->PlaceOf(rank)) continue;
      joins_.Tell(now, rank, AbsentPart::Of(round->asked(), own_rank_, round->number()));
    }
  }
  if (!given_up.ok()) return GiveUp(round, given_up, Told(given_up));
  if (round->AllAnnounced()) Begin(round);
}

void Collectives::Announce(PeerRound* round) {
  const PeerAnnouncement& own = *round->report(own_rank_).announcement;
  for (size_t place = 0; place < round->ranks().size(); ++place) {
    if (place == round->place()) continue;
    const Share share = ShareOf(own, round->ranks(), round->place(), place);
    std::span<const std::byte> payload;
    if (share.bytes != 0 && share.bytes <= wire::kPeerInline) payload = {round->input() + share.offset, share.bytes};
    links_.Send(static_cast<uint32_t>(round->ranks()[place]), wire::RecordType::kAnnounce, own.Encode(payload));
  }
}

void Collectives::UseCopies(std::unique_ptr<CollectiveCopies> copies) {
  copies_ = std::move(copies);
  copies_->UseSink(static_cast<CollectiveCopiesSink*>(this));
}

void Collectives::OnInputCopied(const Request* request, const std::byte* input) {
  const auto found = requests_.find(request);
  if (found == requests_.end() || stopped_ || fatal_) return;
  PeerRound* round = found->second;
  if (!round->held() || !round->failure().ok()) return;
  round->Release(input);
  Announce(round);
  if (round->AllAnnounced()) Begin(round);
}

void Collectives::OnCopiesFailed(const Request* request, const absl::Status& why) {
  if (const auto found = requests_.find(request); found != requests_.end()) GiveUp(found->second, why, Told(why));
}

void Collectives::OnCopiesEnded(std::shared_ptr<Request> request, const absl::Status& outcome) {
  sink_->OnCollectiveDone(std::move(request), outcome);
}

// ---- Beginning ----

// Two levels where the job's reductions have them, so that the bits are those of a push_pull.
std::vector<uint32_t> Collectives::GroupsOf(const ProcessSet& set) const {
  std::vector<uint32_t> groups;
  int64_t end = 0;
  auto rank = set.ranks().begin();
  for (const uint32_t size : epoch_.group_sizes()) {
    end += size;
    uint32_t members = 0;
    for (; rank != set.ranks().end() && *rank < end; ++rank) ++members;
    if (members != 0) groups.push_back(members);
  }
  return groups;
}

// With the announcements of all.
void Collectives::Begin(PeerRound* round) {
  const absl::Status status = Prepare(round);
  if (!status.ok()) {
    // All ranks find the same, and no memory was shown.
    return Leave(round, Retryable(Annotate(status, round->asked().Describe())));
  }
  if (round->asked().gpu != nullptr) {
    const absl::StatusOr<std::byte*> output =
        copies_->Output(round->asked().request.get(), round->plan().gives_output ? round->plan().output_bytes : 0);
    if (!output.ok()) return GiveUp(round, output.status(), Told(output.status()));
    if (*output != nullptr) round->UseOutput(*output);
  }
  if (const absl::Status shown = ShowMemory(round, &links_); !shown.ok()) return GiveUp(round, shown, Told(shown));
  order_.emplace(~round->asked().priority, round->serial());
  TakeDelivered(round);
  Pump(round);
  MaybeLeave(round);
}

absl::Status Collectives::Prepare(PeerRound* round) {
  const std::vector<PeerAnnouncement> all = round->Announcements();
  if (absl::Status status = Compare(all); !status.ok()) return status;
  absl::StatusOr<ExchangePlan> plan = MakePlan(all, round->ranks(), round->place());
  if (!plan.ok()) return plan.status();
  round->Begin(*std::move(plan), GroupsOf(*round->asked().set));
  return absl::OkStatus();
}

// What came before the plan was made.
void Collectives::TakeDelivered(PeerRound* round) {
  for (size_t place = 0; place < round->ranks().size(); ++place) {
    if (place == round->place()) continue;
    PeerReport& report = round->report(round->ranks()[place]);
    if (!report.announcement->payload.empty()) Deliver(round, place, 0, report.announcement->payload);
    for (const auto& [transfer, bytes] : std::exchange(report.delivered, {})) Deliver(round, place, transfer, bytes);
  }
  for (uint32_t step = 0; step < round->plan().steps.size(); ++step) {
    const PlanStep& each = round->plan().steps[step];
    if (each.kind == PlanStep::Kind::kSend && each.announced) round->Finish(step);
  }
}

void Collectives::Deliver(PeerRound* round, size_t place, uint32_t transfer, std::span<const std::byte> bytes) {
  const std::optional<uint32_t> step = round->ReceiveOf(place, transfer);
  if (!step || round->plan().steps[*step].bytes != bytes.size() || bytes.size() > wire::kPeerInline) {
    return InvalidRecord(static_cast<uint32_t>(round->ranks()[place]), "bytes that no round awaits");
  }
  std::memcpy(round->Address(round->plan().steps[*step].to), bytes.data(), bytes.size());
  round->Finish(*step);
}

// ---- Moving ----

// Posts what can go. True if anything did.
bool Collectives::Pump(PeerRound* round) {
  if (round->state() != PeerRoundState::kMoving) return false;
  bool worked = false;
  // The place behind this one first: not all ranks turn to the same.
  for (size_t k = 1; k < round->ranks().size(); ++k) {
    worked |= PumpTo(round, (round->place() + k) % round->ranks().size());
  }
  return worked;
}

bool Collectives::PumpTo(PeerRound* round, size_t place) {
  bool worked = false;
  const auto rank = static_cast<uint32_t>(round->ranks()[place]);
  std::deque<uint32_t>& sends = round->sends(place);
  while (!sends.empty()) {
    const uint32_t step = sends.front();
    const PlanStep& send = round->plan().steps[step];
    if (send.announced) {
      sends.pop_front();
      continue;
    }
    if (send.bytes <= wire::kPeerInline) {
      const wire::DataBody body{round->id(), round->number(), send.transfer, static_cast<uint32_t>(send.bytes)};
      links_.Send(rank, wire::RecordType::kData, BytesOf(body), {round->Address(send.from), send.bytes});
      sends.pop_front();
      round->Finish(step);
      worked = true;
      continue;
    }
    PeerReport& report = round->report(static_cast<int32_t>(rank));
    const auto shown = report.shown.find(send.transfer);
    if (shown == report.shown.end() || writes_[rank] >= kMostWrites) break;
    if (!PostWrite(round, place, step, shown->second)) break;
    sends.pop_front();
    worked = true;
  }
  return worked;
}

bool Collectives::PostWrite(PeerRound* round, size_t place, uint32_t step, const ShownMemory& to) {
  const auto rank = static_cast<uint32_t>(round->ranks()[place]);
  const PlanStep& send = round->plan().steps[step];
  bps_local from{nullptr, round->Address(send.from)};
  if (links_.needs_local_regions()) {
    const Region& region = send.from.buffer == PlanBuffer::kInput    ? round->input_region
                           : send.from.buffer == PlanBuffer::kOutput ? round->output_region
                                                                     : round->scratch_region;
    from.region = region.get();
  }
  const bps_remote remote{to.key.data(), to.key_size, to.offset};
  if (!links_.Write(rank, from, send.bytes, remote, to.immediate, round->UserOf(step))) return false;
  ++round->writes;
  ++writes_[rank];
  return true;
}

void Collectives::OnPeerLanded(uint64_t user) {
  PeerRound* round = rounds_.FindSerial(PeerRound::SerialOf(user));
  if (round == nullptr || round->state() != PeerRoundState::kMoving) return;
  round->Finish(PeerRound::StepOf(user));
  MaybeLeave(round);
}

void Collectives::OnPeerWritten(uint32_t rank, uint64_t user, int32_t code) {
  --writes_[rank];
  PeerRound* round = rounds_.FindSerial(PeerRound::SerialOf(user));
  if (round == nullptr) return;
  --round->writes;
  if (code == BPS_OK && round->state() == PeerRoundState::kMoving) round->Finish(PeerRound::StepOf(user));
  if (code != BPS_OK && round->failure().ok() && round->write_error.ok()) {
    round->write_error = MakeStatus(code, "the memory of " + links_.description(rank) + " could not be written");
    round->write_error_at = After(now_, kLossGrace);
    alarms_.emplace(round->write_error_at, round->serial());
  }
  MaybeLeave(round);
}

// ---- Records ----

void Collectives::OnPeerRecord(uint32_t rank, wire::RecordType type, std::span<const std::byte> body) {
  switch (type) {
    case wire::RecordType::kAnnounce:
      return OnAnnounce(rank, body);
    case wire::RecordType::kReady:
      return OnReady(rank, body);
    case wire::RecordType::kData:
      return OnData(rank, body);
    case wire::RecordType::kAbort:
      return OnAbort(rank, body);
    case wire::RecordType::kJoined:
    case wire::RecordType::kSeen:
    case wire::RecordType::kAllJoined:
    case wire::RecordType::kTakePart:
      if (!joins_.OnRecord(now_, rank, type, body)) InvalidRecord(rank, "an invalid record of joins");
      return;
    default:
      return InvalidRecord(rank, "a record that no worker sends another");
  }
}

void Collectives::OnAnnounce(uint32_t rank, std::span<const std::byte> body) {
  absl::StatusOr<PeerAnnouncement> announcement = PeerAnnouncement::Decode(body);
  if (!announcement.ok() || announcement->body.rank != static_cast<int32_t>(rank) ||
      (announcement->shares_name() && announcement->body.id != Collective::IdOfName(announcement->name))) {
    return InvalidRecord(rank, "an invalid ANNOUNCE");
  }
  if (announcement->shares_name()) {
    const TensorName& name = *sink_->OnName(announcement->name);
    rounds_.Advance(announcement->body.id, name.rounds);
    if (PassedByStages(rank, *announcement, name)) return;
  }
  PeerRound* round = rounds_.FindOrMake(announcement->body.id, announcement->body.round);
  if (round == nullptr) return;  // given up; it was told
  PeerReport& report = round->report(static_cast<int32_t>(rank));
  if (report.announcement) return InvalidRecord(rank, "two ANNOUNCEs of one round");
  report.announcement = *std::move(announcement);
  if (round->state() == PeerRoundState::kGathering && round->AllAnnounced()) Begin(round);
}

void Collectives::OnReady(uint32_t rank, std::span<const std::byte> body) {
  wire::ReadyBody ready;
  if (!ReadStruct(body, &ready) || ready.key_size > wire::kMaxKey ||
      body.size() - sizeof ready < 2 * ready.key_size + ready.count * sizeof(wire::ReadyEntry)) {
    return InvalidRecord(rank, "an invalid READY");
  }
  PeerRound* round = rounds_.FindOrMake(ready.id, ready.round);
  if (round == nullptr) return;
  PeerReport& report = round->report(static_cast<int32_t>(rank));
  const std::byte* keys = body.data() + sizeof ready;
  for (uint32_t i = 0; i < ready.count; ++i) {
    wire::ReadyEntry entry;
    std::memcpy(&entry, keys + 2 * ready.key_size + i * sizeof entry, sizeof entry);
    ShownMemory& shown = report.shown[entry.transfer];
    shown.key_size = ready.key_size;
    std::memcpy(shown.key.data(), keys + (entry.scratch != 0 ? ready.key_size : 0), ready.key_size);
    shown.offset = entry.offset;
    shown.immediate = entry.immediate;
  }
  Pump(round);
}

void Collectives::OnData(uint32_t rank, std::span<const std::byte> body) {
  wire::DataBody data;
  if (!ReadStruct(body, &data) || body.size() - sizeof data < data.size || data.size > wire::kPeerInline) {
    return InvalidRecord(rank, "invalid DATA");
  }
  PeerRound* round = rounds_.FindOrMake(data.id, data.round);
  if (round == nullptr || !round->failure().ok()) return;
  const std::span<const std::byte> bytes = body.subspan(sizeof data, data.size);
  if (round->state() != PeerRoundState::kMoving) {
    round->report(static_cast<int32_t>(rank)).delivered[data.transfer].assign(bytes.begin(), bytes.end());
    return;
  }
  const std::optional<size_t> place = round->asked().set->PlaceOf(rank);
  if (!place) return InvalidRecord(rank, "DATA of a set that it is not in");
  Deliver(round, *place, data.transfer, bytes);
  MaybeLeave(round);
}

// A member of this release never sends such a thing.
void Collectives::InvalidRecord(uint32_t rank, const char* what) {
  Fatal(absl::InternalError(absl::StrCat(links_.description(rank), " sent ", what)), 0);
}

void Collectives::OnTellAddress(const std::vector<uint32_t>& members, const control::Lane& lane) {
  sink_->OnTellPeers(members, lane);
}

// ---- Progress ----

bool Collectives::Run(Time now) {
  if (stopped_) return false;
  now_ = now;
  bool worked = links_.Run(now);
  if (!given_up_.empty()) worked |= RunGivenUp(now);
  worked |= joins_.Run(now);
  if (copies_ != nullptr) worked |= copies_->Run(now);
  int computing = kMostComputing;
  // Rounds may end meanwhile.
  std::vector<uint64_t> serials;
  serials.reserve(order_.size());
  for (const auto& [priority, serial] : order_) serials.push_back(serial);
  for (const uint64_t serial : serials) {
    PeerRound* round = rounds_.FindSerial(serial);
    if (round == nullptr) continue;
    while (computing > 0 && round->Compute()) {
      --computing;
      worked = true;
    }
    worked |= Pump(round);
    MaybeLeave(round);
  }
  while (!stopped_ && !alarms_.empty() && alarms_.begin()->first <= now) {
    PeerRound* round = rounds_.FindSerial(alarms_.begin()->second);
    alarms_.erase(alarms_.begin());
    if (round == nullptr) continue;
    worked = true;
    if (round->state() == PeerRoundState::kReleasing) {
      if (now < round->release_at()) continue;
      // Without the registration no process can reach the memory any more.
      round->output_region = Region();
      round->scratch_region = Region();
      MaybeLeave(round);
    } else if (!round->write_error.ok() && now >= round->write_error_at) {
      GiveUp(round, round->write_error, Told(round->write_error));
    } else if (now >= round->deadline()) {
      const double seconds = static_cast<double>(round->asked().timeout) / 1e9;
      const absl::Status why =
          absl::DeadlineExceededError(absl::StrCat("not complete within ", seconds, " s: ", Names(*round)));
      GiveUp(round, why, Told(why));
    }
  }
  return worked;
}

Time Collectives::NextTimer() const {
  if (stopped_) return kNever;
  Time next = std::min(links_.NextTimer(), joins_.NextTimer());
  if (!alarms_.empty()) next = std::min(next, alarms_.begin()->first);
  if (copies_ != nullptr) next = std::min(next, copies_->NextTimer());
  for (const Collective& asked : given_up_) {
    if (!fatal_ && WithPlace(asked, [](const FlightPlace& place) { return place.free(); })) return 0;
  }
  for (const auto& [priority, serial] : order_) {
    const PeerRound* round = rounds_.FindSerial(serial);
    if (round != nullptr && round->computes()) return 0;
  }
  return next;
}

std::string Collectives::Names(const PeerRound& round) const {
  if (round.held()) return copies_->DescribeWait(round.asked().request.get());
  std::string text;
  for (const int32_t rank : round.Missing()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", links_.description(static_cast<uint32_t>(rank)));
  }
  return (round.AllAnnounced() ? "bytes are missing from or for " : "not submitted by ") + text;
}

std::string Collectives::DescribeWait(Time now, const Request* request) const {
  const auto found = requests_.find(request);
  for (const Collective& asked : given_up_) {
    if (asked.request.get() == request) return "it comes behind the operation of its name that is in flight";
  }
  if (found == requests_.end()) {
    const std::string copies = copies_ == nullptr ? "" : copies_->DescribeWait(request);
    return copies.empty() ? joins_.DescribeWait(request) : copies;
  }
  const PeerRound& round = *found->second;
  const Time left = std::max<Time>(round.deadline() - now, 0) / kMillisecond;
  return absl::StrCat(
      round.asked().Describe(), ": ",
      round.failure().ok() ? Names(round) : absl::StrCat("it is being given up: ", round.failure().message()),
      "; it goes on until its own deadline, in ", left, " ms");
}

}  // namespace byteps
