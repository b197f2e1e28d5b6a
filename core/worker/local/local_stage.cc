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

constexpr size_t kMaxReason = 1024;
// Between two looks for memory of a peer of which we have heard before it came.
constexpr Time kReachInterval = 100'000;

std::span<const std::byte> BytesOfText(absl::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

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
                       StageSink* sink, Logger* log)
    : options_(options),
      sink_(sink),
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

void LocalStage::UseServers(ServersStage* servers) {
  servers_ = servers;
  servers->UseSink(static_cast<StageSink*>(this));
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
  if (servers_ == nullptr) group_sizes_.assign(epoch.group_sizes().begin(), epoch.group_sizes().end());
  if (absl::Status status = neighbours_->Join(now, epoch, self, set.first, set.size); !status.ok()) return status;
  role_ = std::make_unique<LocalRole>(neighbours_.get(), servers_ != nullptr, inline_bytes_);
  memory_ = std::make_unique<LocalMemory>(&endpoint_->transport(), neighbours_.get(), role_.get());
  work_.Join(&endpoint_->transport(), group_sizes_, neighbours_->size(), neighbours_->own());
  joined_ = true;
  return absl::OkStatus();
}

void LocalStage::OnReady(PeerId peer) {
  const size_t index = Neighbours::IndexOf(peer);
  if (absl::Status status = neighbours_->OnReady(index); !status.ok()) Lose(index, status);
}

// One who has left the session in order, as everybody does at its end, is nobody's loss.
void LocalStage::OnPeerDown(PeerId peer, const absl::Status& why) { Lose(Neighbours::IndexOf(peer), why); }

void LocalStage::Lose(size_t index, const absl::Status& why) {
  neighbours_->Lose(index, why);
  if (in_flight_ != 0 || !ready()) Fatal(why, neighbours_->member(index));
}

void LocalStage::Fatal(const absl::Status& why, uint32_t member) {
  work_.Halt();
  doomed_.clear();  // everything is
  sink_->OnStageFatal(why, member);
}

// A member of this release never sends such a thing.
void LocalStage::Senseless(size_t index, const char* what) {
  Fatal(absl::InternalError(absl::StrCat(neighbours_->description(index), " sent ", what)));
}

// ---- Rounds ----

void LocalStage::Know(Tensor* tensor, std::span<const Tensor::Owed> given_up) {
  for (const Tensor::Owed& owed : given_up) {
    LocalRound* round = rounds_.FindOrMake(tensor->cut->key(), owed.round, neighbours_->size());
    if (round == nullptr) continue;
    GiveUp(round, owed.why, Told(owed.why), Cause::kHere);
    rounds_.Forget(NameIdOf(tensor->cut->key()), owed.round);
  }
}

// ---- Offering ----

void LocalStage::Start(Time now, Operation* operation) {
  now_ = now;
  ++in_flight_;
  LocalRound* round = rounds_.FindOrMake(operation->asked.tensor->cut->key(), operation->round, neighbours_->size());
  if (round == nullptr) {
    --in_flight_;
    return sink_->OnStageFatal(absl::InternalError(DescribeOperation(*operation) + " is over already"), 0);
  }
  round->operation = operation;
  if (round->state() == LocalState::kRefused) return Leave(round);
  round->Move(LocalState::kGathering);
  operation->asked.request->Advance(RequestState::kActive);
  if (const std::optional<size_t> lost = neighbours_->FirstLost()) return Lose(*lost, neighbours_->lost(*lost));
  if (absl::Status status = MakeOffer(round); !status.ok()) return GiveUp(round, status, Told(status), Cause::kHere);
  if (round->AllOffered()) Proceed(round);
}

absl::Status LocalStage::MakeOffer(LocalRound* round) {
  const Operation& operation = *round->operation;
  const Submission& asked = operation.asked;
  const uint64_t bytes = asked.tensor->bytes();
  const bool small = role_->Small(operation), gives = role_->Gives(operation);
  LocalVoice& own = round->voices[neighbours_->own()];
  wire::OfferBody& offer = own.offer;
  offer.key = asked.tensor->cut->key();
  offer.fingerprint = operation.fingerprint;
  offer.round = operation.round;
  offer.elements = asked.tensor->elements();
  offer.rank = neighbours_->own_rank();
  offer.dtype = asked.tensor->dtype();
  offer.root = asked.kind == wire::Operation::kBroadcast ? asked.root : 0;
  offer.operation = asked.kind;
  offer.reduction = static_cast<uint8_t>(asked.reduction);
  offer.shape = static_cast<uint32_t>(asked.tensor->shape().size()) + 1;
  if (!small) {
    offer.key_size = caps_.key_size;
    if (absl::Status status = memory_->Show(round); !status.ok()) return status;
    if (round->shown_input.region != nullptr) offer.memory |= wire::kOfferInput;
    if (round->shown_output.region != nullptr) offer.memory |= wire::kOfferOutput;
    offer.input_offset = round->shown_input.offset;
    offer.output_offset = round->shown_output.offset;
  }
  own.offered = true;
  const std::span<const std::byte> shape = std::as_bytes(std::span(asked.tensor->shape()));
  own.shape.Assign(shape);
  for (size_t index = 0; index < neighbours_->size(); ++index) {
    if (index == neighbours_->own()) continue;
    std::span<const std::byte> rest;
    if (small) {
      // Where only the leader folds, only it needs the bytes.
      const bool needs = servers_ == nullptr || !IsPushPull(operation) || index == role_->Leader(operation);
      if (gives && needs) rest = {asked.input, bytes};
      offer.way = rest.empty() ? wire::PayloadWay::kNone : wire::PayloadWay::kInline;
    } else {
      // Each peer has keys of its own.
      const absl::StatusOr<size_t> size = ShowTo(index, *round, own.keys);
      // The transport has lost it, and says next why: that is what everything is to end with. The others do not wait.
      if (absl::IsUnavailable(size.status())) continue;
      if (!size.ok()) return size.status();
      rest = std::as_bytes(std::span<const uint8_t>(own.keys, *size));
      offer.way = wire::PayloadWay::kInPlace;
    }
    const OfferHead head(offer, asked.tensor->shape(), endpoint_->MaxRecord() - rest.size());
    Send(index, wire::RecordType::kOffer, head.bytes(), rest);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> LocalStage::ShowTo(size_t index, const LocalRound& round, uint8_t* keys) {
  size_t size = 0;
  for (const BufferRegions::Place& place : {round.shown_input, round.shown_output}) {
    if (place.region == nullptr) continue;
    const int32_t code = endpoint_->transport().ExportKey(place.region, Neighbours::PeerOf(index), keys + size);
    if (code != BPS_OK) return MakeStatus(code, "the memory cannot be shown to " + neighbours_->description(index));
    size += caps_.key_size;
  }
  return size;
}

void LocalStage::Send(size_t index, wire::RecordType type, std::span<const std::byte> fixed,
                      std::span<const std::byte> payload) {
  endpoint_->Send(Neighbours::PeerOf(index), type, fixed, payload);
}

// The last word, to everybody.
void LocalStage::SendWord(const LocalRound& round, wire::RecordType type, int32_t code,
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
      if (!neighbours_->OnProbe(now_, index, body)) Senseless(index, "a PROBE that makes no sense");
      return;
    case wire::RecordType::kReach:
      if (!neighbours_->OnReach(index, body)) Senseless(index, "a REACH that makes no sense");
      return;
    case wire::RecordType::kDone:
    case wire::RecordType::kGiveUp:
      return OnWord(index, type, body);
    default:
      // Reserved for later versions, which ask only members that know them.
      BPS_LOG(*log_, kWarning) << neighbours_->description(index) << " sent a record of type " << static_cast<int>(type)
                               << ", which a worker of its host does not take";
  }
}

void LocalStage::OnOffer(size_t index, std::span<const std::byte> body) {
  Offer told;
  if (!ReadOffer(body, &told)) return Senseless(index, "an OFFER that is cut off");
  const wire::OfferBody& offer = told.body;
  if (offer.rank != neighbours_->rank(index) || !IsDtype(offer.dtype) ||
      offer.elements > UINT64_MAX / DtypeSize(offer.dtype)) {
    return Senseless(index, "an OFFER that makes no sense");
  }
  LocalRound* round = rounds_.FindOrMake(offer.key, offer.round, neighbours_->size());
  if (round == nullptr) return;  // over: we have given it up
  LocalVoice& voice = round->voices[index];
  if (voice.offered) return Senseless(index, "two OFFERs for one round");
  const std::span<const std::byte> rest = told.rest;
  size_t size = 0;
  if (offer.way == wire::PayloadWay::kInline) {
    size = offer.elements * DtypeSize(offer.dtype);
    if (size > inline_bytes_ || size > rest.size()) return Senseless(index, "an OFFER whose payload is cut off");
    voice.payload.Assign(rest.first(size));
  } else if (offer.way == wire::PayloadWay::kInPlace) {
    const int keys = (offer.memory & wire::kOfferInput ? 1 : 0) + (offer.memory & wire::kOfferOutput ? 1 : 0);
    size = static_cast<size_t>(keys) * offer.key_size;
    if (offer.key_size > wire::kMaxKey || size > rest.size())
      return Senseless(index, "an OFFER whose keys are cut off");
    std::memcpy(voice.keys, rest.data(), size);
  }
  voice.offer = offer;
  voice.shape.Assign(told.shape);
  voice.offered = true;
  if (round->state() == LocalState::kGathering && round->AllOffered()) Proceed(round);
}

// Everybody has offered.
void LocalStage::Proceed(LocalRound* round) {
  if (absl::Status status = Compare(*round); !status.ok()) return GiveUp(round, status, status, Cause::kHere);
  // From here on somebody else may know better than our clock who is missing.
  if (servers_ != nullptr) round->operation->pushed_any = true;
  if (!role_->Small(*round->operation)) return BeginWork(round);
  if (servers_ != nullptr) return ProceedSmall(round);
  if (FoldSmall(round)) Leave(round);
}

// The words are the same on all ranks, whoever sees it first.
absl::Status LocalStage::Compare(const LocalRound& round) const {
  const LocalVoice& first = round.voices[0];
  const auto describe = [](const LocalVoice& voice) { return DescribeOffer(voice.offer, voice.shape.bytes()); };
  std::string others;
  for (size_t index = 1; index < neighbours_->size(); ++index) {
    const LocalVoice& voice = round.voices[index];
    if (SameAsked(voice.offer, first.offer)) continue;
    absl::StrAppend(&others, "; ", neighbours_->description(index), ": ", describe(voice));
    if (describe(voice) == describe(first)) absl::StrAppend(&others, " (of another shape, root or scaling)");
  }
  if (others.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks disagree: ", neighbours_->description(0), ": ", describe(first), others));
}

// ---- Small tensors ----

// Folds what was sent into the output, or copies it there. False: somebody has sent nothing.
bool LocalStage::FoldSmall(LocalRound* round) {
  const Operation& operation = *round->operation;
  const Submission& asked = operation.asked;
  const uint64_t bytes = asked.tensor->bytes();
  const size_t own = neighbours_->own();
  if (!IsPushPull(operation)) return role_->Root(operation) || CopyFrom(round, role_->Leader(operation));
  if (bytes == 0) return true;
  inputs_.resize(neighbours_->size());
  for (size_t index = 0; index < inputs_.size(); ++index) {
    if (index != own && round->voices[index].payload.size() != bytes) {
      return Senseless(index, "an OFFER without its payload"), false;
    }
    inputs_[index] = round->voices[index].payload.data();
  }
  inputs_[own] = asked.input;
  const Reduction whole = {asked.tensor->dtype(), asked.reduction};
  Reduce(servers_ != nullptr ? PartialReduction(asked) : whole, inputs_, group_sizes_, asked.output,
         asked.tensor->elements());
  return true;
}

// The bytes that a member has sent become the output. False: there are none.
bool LocalStage::CopyFrom(LocalRound* round, size_t index) {
  const Submission& asked = round->operation->asked;
  const ByteBuffer& payload = round->voices[index].payload;
  if (payload.size() != asked.tensor->bytes()) return Senseless(index, "a record without its payload"), false;
  if (!payload.empty()) std::memcpy(asked.output, payload.data(), payload.size());
  return true;
}

// With servers: the leader speaks for all.
void LocalStage::ProceedSmall(LocalRound* round) {
  const Operation& operation = *round->operation;
  const size_t leader = role_->Leader(operation);
  round->Move(LocalState::kWorking);
  if (leader == neighbours_->own()) {
    if (IsPushPull(operation) && !FoldSmall(round)) return;
    return Contribute(round, {0, operation.asked.tensor->cut->parts()}, true);
  }
  // The root has sent its bytes to all of its host; any other leader's come back from the servers.
  const bool here = !IsPushPull(operation) && !role_->FromAfar(operation);
  if ((here || round->voices[leader].ended) && CopyFrom(round, leader)) Leave(round);
}

// ---- Large tensors ----

void LocalStage::BeginWork(LocalRound* round) {
  if (absl::Status error; !memory_->Reach(round, &error)) {
    if (!error.ok()) return GiveUp(round, error, Told(error), Cause::kHere);
    if (std::find(reaching_.begin(), reaching_.end(), round) == reaching_.end()) reaching_.push_back(round);
    return;
  }
  std::erase(reaching_, round);
  round->Move(LocalState::kWorking);
  const Operation& operation = *round->operation;
  const Cut& cut = *operation.asked.tensor->cut;
  const uint64_t bytes = operation.asked.tensor->bytes();
  const size_t own = neighbours_->own(), members = neighbours_->size();
  if (role_->Root(operation)) {
    // The others of its host read its input; those of other hosts get it from the servers.
    if (servers_ != nullptr) Contribute(round, {0, cut.parts()}, true);
  } else if (!IsPushPull(operation) && !role_->FromAfar(operation)) {
    round->root = *neighbours_->Find(operation.asked.root);
    round->slice = {0, bytes};
  } else if (servers_ == nullptr) {
    round->slice = SliceOf(bytes, own, members);
  } else if (const PartRange range = PartsOf(cut.parts(), round->name_id(), own, members); range.size() != 0) {
    round->to_spread = range.size();
    Contribute(round, range, role_->FromAfar(operation));
  }
  NextPiece(round);
}

// Parts of the output (or, at a root, of the input) go to the servers: those that are ready, at once.
void LocalStage::Contribute(LocalRound* round, PartRange parts, bool all_ready) {
  Operation* operation = round->operation;
  operation->source = role_->Root(*operation) ? operation->asked.input : operation->asked.output;
  round->beyond = true;
  round->parts = parts;
  round->next_part = all_ready ? parts.last : parts.first;
  servers_->Begin(now_, operation, parts);
  for (uint32_t part = parts.first; part < round->next_part; ++part) servers_->Push(now_, operation, part);
}

LocalPiece LocalStage::PieceOf(const LocalRound& round, uint32_t part, LocalPiece::Kind kind) const {
  const Tensor& tensor = *round.operation->asked.tensor;
  const uint64_t first = tensor.cut->first(part) * tensor.element_bytes();
  return {kind, first, first + tensor.cut->count(part) * tensor.element_bytes()};
}

// A round without a piece gets its next one, or is done; or waits for the servers.
void LocalStage::NextPiece(LocalRound* round) {
  if (!round->doom.ok()) return;
  Slice& slice = round->slice;
  if (slice.first != slice.last) {
    const uint64_t end = std::min(slice.last, slice.first + LocalWork::kPieceBytes);
    const bool fetch = !IsPushPull(*round->operation);
    work_.Add(now_, round, {fetch ? LocalPiece::Kind::kFetch : LocalPiece::Kind::kReduce, slice.first, end});
    slice.first = end;
  } else if (!round->spread.empty()) {
    work_.Add(now_, round, PieceOf(*round, round->spread.front(), LocalPiece::Kind::kSpread));
  } else if (round->next_part != round->parts.last) {
    work_.Add(now_, round, PieceOf(*round, round->next_part, LocalPiece::Kind::kFold));
  } else if (round->to_spread == 0) {
    FinishShare(round);
  }
}

void LocalStage::OnPiece(LocalRound* round) {
  if (round->piece.kind == LocalPiece::Kind::kFold) servers_->Push(now_, round->operation, round->next_part++);
  if (round->piece.kind == LocalPiece::Kind::kSpread) {
    round->spread.pop_front();
    --round->to_spread;
  }
  NextPiece(round);
}

void LocalStage::OnPieceFailed(LocalRound* round, int32_t code, size_t culprit) {
  const std::string& who = neighbours_->description(culprit);
  if (code == BPS_UNAVAILABLE) return Lose(culprit, absl::UnavailableError("the connection to " + who + " is lost"));
  // Who has taken it away says next why: he has given the round up, or his session has failed.
  work_.Withdraw(now_, round);
  round->doom = MakeStatus(code, "the memory of " + who + " could not be read or written");
  round->doom_at = After(now_, kWordOfLoss);
  doomed_.push_back(round);
}

void LocalStage::OnWorkFatal(const absl::Status& why) { Fatal(why); }

void LocalStage::FinishShare(LocalRound* round) {
  round->Move(LocalState::kFinishing);
  round->voices[neighbours_->own()].ended = true;
  SendWord(*round, wire::RecordType::kDone, BPS_OK, {});
  MaybeLeave(round);
}

// ---- Back from the servers ----

void LocalStage::OnPartHome(Operation* operation, uint32_t part) {
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr || !round->failure.ok() || round->to_spread == 0) return;
  round->spread.push_back(part);
  if (round->task == 0) NextPiece(round);
}

void LocalStage::OnGivingUp(Operation* operation, const absl::Status& why, bool heard) {
  LocalRound* round = rounds_.FindOf(*operation);
  if (round != nullptr) GiveUp(round, why, heard ? why : Told(why), Cause::kServers);
}

void LocalStage::OnStageDone(Operation* operation, const absl::Status&) {
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr) return;
  round->beyond = false;
  if (!round->failure.ok() || !role_->Small(*operation)) return MaybeLeave(round);
  if (!role_->Root(*operation)) {
    SendWord(*round, wire::RecordType::kDone, BPS_OK, {operation->asked.output, operation->asked.tensor->bytes()});
  }
  Leave(round);
}

// ---- Ending ----

void LocalStage::OnWord(size_t index, wire::RecordType type, std::span<const std::byte> body) {
  wire::RoundBody word;
  if (!ReadStruct(body, &word) || word.text > body.size() - sizeof word || word.rank != neighbours_->rank(index)) {
    return Senseless(index, "a last word that makes no sense");
  }
  LocalRound* round = rounds_.FindOrMake(word.key, word.round, neighbours_->size());
  if (round == nullptr) return;
  LocalVoice& voice = round->voices[index];
  voice.ended = true;
  const std::span<const std::byte> rest = body.subspan(sizeof word, word.text);
  if (type == wire::RecordType::kGiveUp) {
    const size_t size = std::min<size_t>(rest.size(), kMaxReason);
    const std::string_view text(reinterpret_cast<const char*>(rest.data()), size);
    const absl::Status why = MakeStatus(word.code == BPS_OK ? BPS_INTERNAL : word.code, text);
    if (round->failure.ok()) return GiveUp(round, why, why, Cause::kNeighbour);
  } else if (servers_ != nullptr && round->failure.ok()) {
    if (rest.size() > inline_bytes_) return Senseless(index, "a result that is no small tensor's");
    if (!rest.empty()) voice.payload.Assign(rest);
    const bool awaited = round->state() == LocalState::kWorking && role_->Small(*round->operation);
    if (awaited && index == role_->Leader(*round->operation)) {
      if (CopyFrom(round, index)) Leave(round);
      return;
    }
  }
  MaybeLeave(round);
}

void LocalStage::Abort(Time now, Operation* operation, const absl::Status& why) {
  now_ = now;
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr || !round->failure.ok()) return;
  GiveUp(round, why, Told(why), Cause::kHere);
}

// What the others hear of what went wrong here.
absl::Status LocalStage::Told(const absl::Status& why) const {
  return MakeStatus(
      absl::IsCancelled(why) ? BPS_ABORTED : StatusCode(why),
      absl::StrCat(neighbours_->description(neighbours_->own()), " gave up: ", absl::string_view(why.message())));
}

// `told`: what the others hear.
void LocalStage::GiveUp(LocalRound* round, const absl::Status& why, const absl::Status& told, Cause cause) {
  if (!round->failure.ok()) return;
  round->failure = why;
  work_.Withdraw(now_, round);
  std::erase(reaching_, round);
  std::erase(doomed_, round);
  LocalVoice& own = round->voices[neighbours_->own()];
  if (!own.ended) {
    own.ended = true;
    SendWord(*round, wire::RecordType::kGiveUp, StatusCode(told), BytesOfText(told.message().substr(0, kMaxReason)));
  }
  if (round->operation == nullptr) return round->Move(LocalState::kRefused);
  Operation* operation = round->operation;
  round->Move(LocalState::kReleasing);
  round->release_at = After(now_, options_.release_grace);
  releasing_.push_back(round);
  // The servers stage, if it has the operation or has to tell the servers, says when it is through: OnStageDone.
  if (servers_ != nullptr && cause == Cause::kHere) {
    round->beyond = true;
    return servers_->Abort(now_, operation, why);
  }
  if (round->beyond) {
    if (cause == Cause::kNeighbour) servers_->Withdraw(now_, operation, why);
    return;
  }
  operation->failure = Retryable(Annotate(why, DescribeOperation(*operation)));
  MaybeLeave(round);
}

void LocalStage::MaybeLeave(LocalRound* round) {
  const bool over = round->state() == LocalState::kFinishing   ? round->AllEnded()
                    : round->state() == LocalState::kReleasing ? !round->shown || round->AllEnded()
                                                               : false;
  if (over && !round->beyond) Leave(round);
}

// Nobody touches the operation's memory any more. Forgets the round.
void LocalStage::Leave(LocalRound* round) {
  Operation* operation = round->operation;
  if (round->state() == LocalState::kRefused) {
    operation->failure = Retryable(Annotate(round->failure, DescribeOperation(*operation)));
  }
  const absl::Status outcome = operation->failure;
  if (!stopped_) memory_->Finish(round, outcome.ok());
  Drop(operation);
  sink_->OnStageDone(operation, outcome);
}

void LocalStage::Drop(Operation* operation) {
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr) return;
  if (!stopped_) {
    work_.Withdraw(now_, round);
    memory_->LetGo(round);
  }
  if (round->beyond) servers_->Drop(operation);
  std::erase(releasing_, round);
  std::erase(reaching_, round);
  std::erase(doomed_, round);
  rounds_.Forget(round->name_id(), round->number());
  --in_flight_;
}

void LocalStage::Stop() {
  if (stopped_) return;
  stopped_ = true;
  work_.Halt();
  rounds_.ForEach([](LocalRound* round) {
    round->input = Region();
    round->output = Region();
    round->staging = Staging();
  });
  memory_.reset();
  neighbours_->Stop();
  endpoint_.reset();
}

void LocalStage::DropFreedBuffers() {
  if (memory_ != nullptr) memory_->DropFreedBuffers();
}

// ---- Progress ----

bool LocalStage::Run(Time now) {
  if (stopped_) return false;
  now_ = now;
  bool worked = endpoint_->Poll(now);
  worked |= neighbours_->Answer(now);
  for (size_t i = 0; i < reaching_.size();) {
    LocalRound* round = reaching_[i];
    BeginWork(round);
    if (i < reaching_.size() && reaching_[i] == round) ++i;
  }
  worked |= work_.Run(now);
  for (size_t i = 0; i < doomed_.size();) {
    LocalRound* round = doomed_[i];
    if (now >= round->doom_at) GiveUp(round, round->doom, Told(round->doom), Cause::kHere);
    if (i < doomed_.size() && doomed_[i] == round) ++i;
  }
  for (size_t i = 0; i < releasing_.size();) {
    LocalRound* round = releasing_[i];
    // Without the registration nobody can reach the memory any more.
    if (now >= round->release_at) memory_->TakeAway(round);
    MaybeLeave(round);
    if (i < releasing_.size() && releasing_[i] == round) ++i;
  }
  return worked;
}

Time LocalStage::NextTimer() const {
  if (stopped_) return kNever;
  Time next = std::min({endpoint_->NextTimer(), neighbours_->NextTimer(now_), work_.NextTimer(now_)});
  if (!reaching_.empty()) next = std::min(next, now_ + kReachInterval);
  for (const LocalRound* round : doomed_) next = std::min(next, round->doom_at);
  for (const LocalRound* round : releasing_) {
    if (round->shown) next = std::min(next, round->release_at);
  }
  return next;
}

// ---- For people ----

std::string LocalStage::Names(const LocalRound& round, bool LocalVoice::*has) const {
  std::string text;
  for (size_t index = 0; index < neighbours_->size(); ++index) {
    if (round.voices[index].*has) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", neighbours_->description(index));
  }
  return text;
}

void LocalStage::AddEndpoints(std::vector<Endpoint*>* all) {
  if (!stopped_) all->push_back(endpoint_.get());
}

std::string LocalStage::WhoIsMissing(const Operation& operation) const {
  const LocalRound* round = rounds_.FindOf(operation);
  if (round == nullptr) return "it has not begun";
  if (!round->AllOffered()) return "not submitted by " + Names(*round, &LocalVoice::offered);
  if (round->beyond) {
    if (std::string text = servers_->WhoIsMissing(operation); !text.empty()) return text;
  }
  if (servers_ != nullptr && role_->Small(operation)) {
    return "no result from " + neighbours_->description(role_->Leader(operation));
  }
  const std::string text = "not finished by " + Names(*round, &LocalVoice::ended);
  if (!work_.Queued(round)) return text;
  return absl::StrCat(text, "; here scheduler \"", work_.scheduler_name(), "\" has not given out what is to be done");
}

std::string LocalStage::Describe() const { return neighbours_->Describe() + rounds_.Describe(); }

}  // namespace byteps
