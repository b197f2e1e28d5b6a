#include "core/local_stage.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/message.h"
#include "core/offer.h"
#include "core/status.h"
#include "core/time.h"

namespace byteps {
namespace {

// Borders of slices: no two members write into one cache line.
constexpr uint64_t kBorder = 64;
// What is folded before the scheduler is asked again.
constexpr uint64_t kPieceBytes = 8 * BlockFold::kBlockBytes;
// The scheduler's only peer: this member's own hands.
constexpr uint32_t kOwnHands = 1;
constexpr size_t kMaxReason = 1024;
// The system may yet permit what it refuses at first (Yama: the other side lets us in when it hears of it).
constexpr Time kProbePatience = 500 * kMillisecond;
constexpr Time kProbeInterval = kMillisecond;
// Between two looks for memory of a peer of which we have heard before it came.
constexpr Time kReachInterval = 100'000;

uint64_t NameId(uint64_t key) { return key >> 16; }

std::string DescribeMember(const control::Member& member) {
  return absl::StrCat("rank ", member.rank(), " (worker, host ", member.host().name(), ", ", member.host().address(),
                      ", pid ", member.pid(), ")");
}

bool IsPushPull(const LocalRound& round) { return round.operation->asked.kind == wire::Operation::kPushPull; }

}  // namespace

Slice SliceOf(uint64_t bytes, size_t index, size_t count) {
  const uint64_t units = bytes / kBorder + (bytes % kBorder != 0 ? 1 : 0);
  // In two steps: the product could overflow.
  const auto border = [&](uint64_t i) {
    return std::min(bytes, (units / count * i + units % count * i / count) * kBorder);
  };
  return {border(index), border(index + 1)};
}

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
    : options_(options), scheduler_(std::move(scheduler)), sink_(sink), log_(log), caps_(transport.caps()) {
  EndpointHandler* handler = this;
  endpoint_ = std::make_unique<Endpoint>(std::move(transport), std::move(endpoint), handler, log);
}

LocalStage::~LocalStage() { Stop(); }

// ---- Membership ----

absl::Status LocalStage::Join(Time now, const control::Epoch& epoch, const control::Member& self) {
  const uint32_t own_rank = static_cast<uint32_t>(self.rank());
  uint32_t first = 0, size = 0;
  for (const uint32_t each : epoch.local_sizes()) {
    size = each;
    if (own_rank < first + size) break;
    first += size;
  }
  if (size == 0 || own_rank - first >= size || first + size > static_cast<uint32_t>(epoch.workers_size())) {
    return absl::InternalError("the coordinator's sets of workers that reduce among themselves lack this one");
  }
  own_ = own_rank - first;
  inline_bytes_ = std::min<uint64_t>(epoch.inline_bytes(), MaxInline(caps_));
  if (inline_bytes_ != epoch.inline_bytes()) {
    return absl::InternalError("the coordinator's limit of inline payloads is more than this worker can send");
  }
  group_sizes_ = {size};
  if (epoch.local_sizes_size() == 1) group_sizes_.assign(epoch.group_sizes().begin(), epoch.group_sizes().end());
  fold_ = std::make_unique<BlockFold>(&endpoint_->transport(), size);
  for (uint32_t index = 0; index < size; ++index) {
    const control::Member& worker = epoch.workers(static_cast<int>(first + index));
    Member& member = members_.emplace_back();
    member.rank = static_cast<uint32_t>(worker.rank());
    member.description = DescribeMember(worker);
    if (index == own_) {
      member.ready = member.reached = true;
      ++reached_members_;
      continue;
    }
    PeerSpec spec;
    spec.session = epoch.session_id();
    spec.epoch = epoch.epoch();
    spec.session_nonce = epoch.nonce();
    spec.own_member = self.member();
    spec.member = worker.member();
    spec.address = worker.local().address();
    spec.description = member.description;
    spec.local_id = PeerOf(own_);
    spec.id = PeerOf(index);
    if (absl::Status status = endpoint_->AddPeer(now, spec); !status.ok()) return status;
  }
  staging_ = std::make_unique<StagingPool>(&endpoint_->transport());
  buffers_ = std::make_unique<BufferRegions>(&endpoint_->transport());
  probe_value_ = self.member();
  absl::StatusOr<Region> region = Region::Make(&endpoint_->transport(), &probe_value_, sizeof probe_value_);
  if (!region.ok()) return region.status();
  probe_region_ = *std::move(region);
  const uint32_t hands[] = {kOwnHands};
  scheduler_.Peers(hands);
  joined_ = true;
  return absl::OkStatus();
}

std::string LocalStage::missing() const {
  std::string text;
  for (const Member& member : members_) {
    if (!member.reached) absl::StrAppend(&text, text.empty() ? "" : ", ", member.description);
  }
  return text;
}

void LocalStage::OnReady(PeerId peer) {
  Member& member = members_[IndexOf(peer)];
  if (member.ready) return;
  member.ready = true;
  if (absl::Status status = Probe(IndexOf(peer)); !status.ok()) Lose(IndexOf(peer), status);
}

// Asks a member whether it can reach our memory.
absl::Status LocalStage::Probe(size_t index) {
  wire::ProbeBody probe{};
  probe.value = probe_value_;
  probe.key_size = caps_.key_size;
  const int32_t code = endpoint_->transport().ExportKey(probe_region_.get(), PeerOf(index), probe.key);
  if (code != BPS_OK) return MakeStatus(code, "no memory can be shown to " + members_[index].description);
  Send(index, wire::RecordType::kProbe, BytesOf(probe));
  return absl::OkStatus();
}

void LocalStage::OnProbe(size_t index, std::span<const std::byte> body) {
  wire::ProbeBody probe;
  if (!ReadStruct(body, &probe) || probe.key_size > wire::kMaxKey || members_[index].probe) {
    return Senseless(index, "a PROBE that makes no sense");
  }
  members_[index].probe = probe;
  members_[index].probe_until = After(now_, kProbePatience);
  ++probes_;
}

bool LocalStage::AnswerProbes() {
  bool worked = false;
  for (size_t index = 0; probes_ != 0 && index < members_.size(); ++index) {
    Member& member = members_[index];
    if (!member.probe) continue;
    uint64_t value = 0;
    const bps_remote remote{member.probe->key, member.probe->key_size, 0};
    const int32_t code = endpoint_->transport().CopyFrom(PeerOf(index), remote, &value, sizeof value);
    const bool reached = code == BPS_OK && value == member.probe->value;
    if (!reached && now_ < member.probe_until) continue;
    if (!reached) {
      BPS_LOG(*log_, kInfo) << "the memory of " << member.description
                            << " cannot be read here: its tensors are copied into shared memory";
    }
    Send(index, wire::RecordType::kReach, BytesOf(wire::ReachBody{reached ? 1u : 0u, 0}));
    member.probe.reset();
    --probes_;
    worked = true;
  }
  return worked;
}

void LocalStage::OnReach(size_t index, std::span<const std::byte> body) {
  wire::ReachBody reach;
  Member& member = members_[index];
  if (!ReadStruct(body, &reach) || member.reached) return Senseless(index, "a REACH that makes no sense");
  member.reached = true;
  ++reached_members_;
  staged_ |= reach.reached == 0;
}

// One who has left the session in order, as everybody does at its end, is nobody's loss.
void LocalStage::OnPeerDown(PeerId peer, const absl::Status& why) { Lose(IndexOf(peer), why); }

void LocalStage::Lose(size_t index, const absl::Status& why) {
  if (members_[index].lost.ok()) members_[index].lost = why;
  if (in_flight_ == 0 && ready()) return;
  halted_ = true;
  sink_->OnStageFatal(why);
}

// A member of this release never sends such a thing.
void LocalStage::Senseless(size_t index, const char* what) {
  halted_ = true;
  sink_->OnStageFatal(absl::InternalError(absl::StrCat(members_[index].description, " sent ", what)));
}

// ---- Rounds ----

LocalRound* LocalStage::FindOrMake(uint64_t key, uint64_t number) {
  std::unique_ptr<Name>& name = names_[NameId(key)];
  if (name == nullptr) name = std::make_unique<Name>();
  if (number < name->next) return nullptr;
  return &name->rounds.try_emplace(number, NameId(key), number, members_.size()).first->second;
}

LocalRound* LocalStage::FindOf(const Operation& operation) const {
  if (!operation.asked.tensor->cut) return nullptr;
  auto name = names_.find(NameId(operation.asked.tensor->cut->key()));
  if (name == names_.end()) return nullptr;
  auto round = name->second->rounds.find(operation.round);
  return round == name->second->rounds.end() || round->second.operation != &operation ? nullptr : &round->second;
}

void LocalStage::Know(Tensor* tensor) {
  for (const Tensor::Owed& owed : std::exchange(tensor->owed, {})) {
    LocalRound* round = FindOrMake(tensor->cut->key(), owed.round);
    if (round == nullptr) continue;
    GiveUp(round, owed.why, Told(owed.why));
    Name& name = *names_.at(NameId(tensor->cut->key()));
    name.next = owed.round + 1;
    name.rounds.erase(name.rounds.begin(), name.rounds.lower_bound(name.next));
  }
}

// ---- Offering ----

void LocalStage::Start(Time now, Operation* operation) {
  now_ = now;
  ++in_flight_;
  LocalRound* round = FindOrMake(operation->asked.tensor->cut->key(), operation->round);
  if (round == nullptr) {
    --in_flight_;
    return sink_->OnStageFatal(absl::InternalError(DescribeOperation(*operation) + " is over already"));
  }
  round->operation = operation;
  if (round->state() == LocalState::kRefused) return Leave(round);
  round->Move(LocalState::kGathering);
  operation->asked.request->Advance(RequestState::kActive);
  for (const Member& member : members_) {
    if (!member.lost.ok()) return Lose(static_cast<size_t>(&member - members_.data()), member.lost);
  }
  if (absl::Status status = Offer(round); !status.ok()) return GiveUp(round, status, Told(status));
  if (round->AllOffered()) Proceed(round);
}

// Registers what the others are to reach.
absl::Status LocalStage::Show(LocalRound* round) {
  const Submission& asked = round->operation->asked;
  const uint64_t bytes = asked.tensor->bytes();
  const bool root = static_cast<uint32_t>(asked.root) == members_[own_].rank;
  const bool gives = IsPushPull(*round) || root;
  const bool takes = IsPushPull(*round) && asked.output != asked.input;
  const auto shareable = [&](const BufferRegions::Place& place, const std::shared_ptr<Buffer>& buffer) {
    return place.region != nullptr && buffer->fd() >= 0 && endpoint_->transport().shares();
  };
  if (gives) {
    absl::StatusOr<BufferRegions::Place> place = buffers_->Find(asked.request->input_buffer(), asked.input, bytes);
    if (!place.ok()) return Annotate(place.status(), "the input's buffer cannot be registered");
    round->shown_input = *place;
  }
  if (takes) {
    absl::StatusOr<BufferRegions::Place> place = buffers_->Find(asked.request->output_buffer(), asked.output, bytes);
    if (!place.ok()) return Annotate(place.status(), "the output's buffer cannot be registered");
    round->shown_output = *place;
  }
  if (staged_ && gives &&
      (!shareable(round->shown_input, asked.request->input_buffer()) ||
       (takes && !shareable(round->shown_output, asked.request->output_buffer())))) {
    absl::StatusOr<Staging> staging = staging_->Take(bytes);
    if (!staging.ok()) return Annotate(staging.status(), "there is no shared memory for the input");
    round->staging = *std::move(staging);
    std::memcpy(round->staging.base, asked.input, bytes);
    round->shown_input = {round->staging.region.get(), 0};
    round->shown_output = {};
    round->shown = true;
    return absl::OkStatus();
  }
  if (gives && round->shown_input.region == nullptr) {
    absl::StatusOr<Region> input = Region::Make(&endpoint_->transport(), const_cast<std::byte*>(asked.input), bytes);
    if (!input.ok()) return Annotate(input.status(), "the input cannot be registered");
    round->input = *std::move(input);
    round->shown_input = {round->input.get(), 0};
  }
  if (takes && round->shown_output.region == nullptr) {
    absl::StatusOr<Region> output = Region::Make(&endpoint_->transport(), asked.output, bytes);
    if (!output.ok()) return Annotate(output.status(), "the output cannot be registered");
    round->output = *std::move(output);
    round->shown_output = {round->output.get(), 0};
  }
  round->shown = gives || takes;
  return absl::OkStatus();
}

absl::Status LocalStage::Offer(LocalRound* round) {
  const Operation& operation = *round->operation;
  const Submission& asked = operation.asked;
  const uint64_t bytes = asked.tensor->bytes();
  LocalVoice& own = round->voices[own_];
  wire::OfferBody& offer = own.offer;
  offer.key = asked.tensor->cut->key();
  offer.fingerprint = operation.fingerprint;
  offer.round = operation.round;
  offer.elements = asked.tensor->elements();
  offer.rank = members_[own_].rank;
  offer.dtype = asked.tensor->dtype();
  offer.root = asked.kind == wire::Operation::kBroadcast ? asked.root : 0;
  offer.operation = asked.kind;
  offer.reduction = static_cast<uint8_t>(asked.reduction);
  const bool gives = IsPushPull(*round) || static_cast<uint32_t>(asked.root) == members_[own_].rank;
  std::span<const std::byte> payload;
  if (bytes <= inline_bytes_) {
    offer.way = gives && bytes != 0 ? wire::PayloadWay::kInline : wire::PayloadWay::kNone;
    if (gives) payload = {asked.input, bytes};
  } else {
    offer.way = wire::PayloadWay::kInPlace;
    offer.key_size = caps_.key_size;
    if (absl::Status status = Show(round); !status.ok()) return status;
    if (round->shown_input.region != nullptr) offer.memory |= wire::kOfferInput;
    if (round->shown_output.region != nullptr) offer.memory |= wire::kOfferOutput;
    offer.input_offset = round->shown_input.offset;
    offer.output_offset = round->shown_output.offset;
  }
  own.offered = true;
  const std::span<const std::byte> shape = std::as_bytes(std::span(asked.tensor->shape()));
  own.shape.assign(shape.begin(), shape.end());
  offer.shape = static_cast<uint32_t>(asked.tensor->shape().size()) + 1;
  for (size_t index = 0; index < members_.size(); ++index) {
    if (index == own_) continue;
    if (offer.way == wire::PayloadWay::kInPlace) {
      // Each peer has keys of its own.
      size_t size = 0;
      for (const BufferRegions::Place& place : {round->shown_input, round->shown_output}) {
        if (place.region == nullptr) continue;
        const int32_t code = endpoint_->transport().ExportKey(place.region, PeerOf(index), own.keys + size);
        if (code != BPS_OK) return MakeStatus(code, "the memory cannot be shown to " + members_[index].description);
        size += caps_.key_size;
      }
      payload = std::as_bytes(std::span<const uint8_t>(own.keys, size));
    }
    const OfferHead head(offer, asked.tensor->shape(), endpoint_->MaxRecord() - payload.size());
    Send(index, wire::RecordType::kOffer, head.bytes(), payload);
  }
  return absl::OkStatus();
}

void LocalStage::Send(size_t index, wire::RecordType type, std::span<const std::byte> fixed,
                      std::span<const std::byte> payload) {
  endpoint_->Send(PeerOf(index), type, fixed, payload);
}

// The last word, to everybody.
void LocalStage::SendWord(const LocalRound& round, wire::RecordType type, const absl::Status& why) {
  const absl::string_view text = why.message().substr(0, kMaxReason);
  wire::RoundBody body{};
  body.key = round.name_id() << 16;
  body.round = round.number();
  body.rank = members_[own_].rank;
  body.code = StatusCode(why);
  body.text = static_cast<uint32_t>(text.size());
  for (size_t index = 0; index < members_.size(); ++index) {
    if (index == own_) continue;
    Send(index, type, BytesOf(body), std::as_bytes(std::span<const char>(text.data(), text.size())));
  }
}

void LocalStage::OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  const size_t index = IndexOf(peer);
  switch (type) {
    case wire::RecordType::kOffer:
      return OnOffer(index, body);
    case wire::RecordType::kProbe:
      return OnProbe(index, body);
    case wire::RecordType::kReach:
      return OnReach(index, body);
    case wire::RecordType::kDone:
    case wire::RecordType::kGiveUp:
      return OnWord(index, type, body);
    default:
      // Reserved for later versions, which ask only members that know them.
      BPS_LOG(*log_, kWarning) << members_[index].description << " sent a record of type " << static_cast<int>(type)
                               << ", which a worker of its host does not take";
  }
}

void LocalStage::OnOffer(size_t index, std::span<const std::byte> body) {
  byteps::Offer told;
  if (!ReadOffer(body, &told)) return Senseless(index, "an OFFER that is cut off");
  const wire::OfferBody& offer = told.body;
  if (offer.rank != members_[index].rank || !IsDtype(offer.dtype) ||
      offer.elements > UINT64_MAX / DtypeSize(offer.dtype)) {
    return Senseless(index, "an OFFER that makes no sense");
  }
  LocalRound* round = FindOrMake(offer.key, offer.round);
  if (round == nullptr) return;  // over: we have given it up
  LocalVoice& voice = round->voices[index];
  if (voice.offered) return Senseless(index, "two OFFERs for one round");
  const std::span<const std::byte> rest = told.rest;
  size_t size = 0;
  if (offer.way == wire::PayloadWay::kInline) {
    size = offer.elements * DtypeSize(offer.dtype);
    if (size > inline_bytes_ || size > rest.size()) return Senseless(index, "an OFFER whose payload is cut off");
    voice.payload.assign(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(size));
  } else if (offer.way == wire::PayloadWay::kInPlace) {
    const int keys = (offer.memory & wire::kOfferInput ? 1 : 0) + (offer.memory & wire::kOfferOutput ? 1 : 0);
    size = static_cast<size_t>(keys) * offer.key_size;
    if (offer.key_size > wire::kMaxKey || size > rest.size())
      return Senseless(index, "an OFFER whose keys are cut off");
    std::memcpy(voice.keys, rest.data(), size);
  }
  voice.offer = offer;
  voice.shape.assign(told.shape.begin(), told.shape.end());
  voice.offered = true;
  if (round->state() == LocalState::kGathering && round->AllOffered()) Proceed(round);
}

// Everybody has offered.
void LocalStage::Proceed(LocalRound* round) {
  if (absl::Status status = Compare(*round); !status.ok()) return GiveUp(round, status, status);
  if (round->operation->asked.tensor->bytes() > inline_bytes_) {
    BeginWork(round);
  } else {
    FoldInline(round);
  }
}

// The words are the same on all ranks, whoever sees it first.
absl::Status LocalStage::Compare(const LocalRound& round) const {
  const LocalVoice& first = round.voices[0];
  const auto describe = [](const LocalVoice& voice) { return DescribeOffer(voice.offer, voice.shape); };
  std::string others;
  for (size_t index = 1; index < members_.size(); ++index) {
    const LocalVoice& voice = round.voices[index];
    if (SameAsked(voice.offer, first.offer)) continue;
    absl::StrAppend(&others, "; ", members_[index].description, ": ", describe(voice));
    if (describe(voice) == describe(first)) absl::StrAppend(&others, " (of another shape, root or scaling)");
  }
  if (others.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks disagree: ", members_[0].description, ": ", describe(first), others));
}

// ---- Working ----

void LocalStage::FoldInline(LocalRound* round) {
  const Submission& asked = round->operation->asked;
  const uint64_t bytes = asked.tensor->bytes();
  if (bytes != 0 && IsPushPull(*round)) {
    std::vector<const void*> inputs(members_.size());
    std::vector<std::byte>& own = round->voices[own_].payload;
    for (size_t index = 0; index < members_.size(); ++index) {
      if (index != own_ && round->voices[index].payload.size() != bytes) {
        return Senseless(index, "an OFFER without its payload");
      }
      inputs[index] = round->voices[index].payload.data();
    }
    inputs[own_] = asked.input;
    if (asked.output == asked.input && own_ != 0) {  // Reduce may write over its first input only
      own.assign(asked.input, asked.input + bytes);
      inputs[own_] = own.data();
    }
    Reduce({asked.tensor->dtype(), asked.reduction}, inputs, group_sizes_, asked.output, asked.tensor->elements());
  } else if (bytes != 0) {
    const size_t root = static_cast<size_t>(asked.root) - members_[0].rank;
    const std::vector<std::byte>& payload = round->voices[root].payload;
    if (root != own_ && payload.size() != bytes) return Senseless(root, "an OFFER without its payload");
    if (root != own_) std::memcpy(asked.output, payload.data(), bytes);
  }
  Leave(round);
}

// Finds a way to everybody's memory.
bool LocalStage::Reach(LocalRound* round, absl::Status* error) {
  const Submission& asked = round->operation->asked;
  const size_t bytes = asked.tensor->bytes();
  bool all = true;
  bool separate = asked.output != asked.input && !round->staging.region;
  for (size_t index = 0; index < members_.size(); ++index) {
    MemberMemory& memory = round->memory[index];
    if (index == own_) {
      memory.input.base = round->staging.region ? round->staging.base : const_cast<std::byte*>(asked.input);
      memory.output.base = round->staging.region ? round->staging.base : asked.output;
      continue;
    }
    const LocalVoice& voice = round->voices[index];
    const uint8_t* key = voice.keys;
    if ((voice.offer.memory & wire::kOfferInput) != 0) {
      memory.input.peer = PeerOf(index);
      memory.input.remote = {key, voice.offer.key_size, voice.offer.input_offset};
      all &= MapSpan(&memory.input, bytes);
      key += voice.offer.key_size;
    } else if (IsPushPull(*round) || members_[index].rank == static_cast<uint32_t>(asked.root)) {
      *error = absl::InternalError(members_[index].description + " has not shown its input");
      return false;
    }
    const bool in_place = (voice.offer.memory & wire::kOfferOutput) == 0;
    memory.output.peer = PeerOf(index);
    memory.output.remote =
        in_place ? memory.input.remote : bps_remote{key, voice.offer.key_size, voice.offer.output_offset};
    separate &= !in_place;
    // It must be here before the first block is written.
    void* output = nullptr;
    const int32_t code =
        IsPushPull(*round) ? endpoint_->transport().BeginWrite(memory.output.peer, memory.output.remote, bytes, &output)
                           : BPS_UNIMPLEMENTED;
    if (code == BPS_OK) endpoint_->transport().EndWrite(memory.output.peer, memory.output.remote);
    if (code == BPS_TRANSPORT_AGAIN) all = false;
  }
  round->stores = separate && bytes >= kWorthStreaming ? Stores::kStreamed : Stores::kCached;
  return all;
}

// Memory of the transport's kind is mapped; any other is copied. False: it is of that kind, but has not come yet.
bool LocalStage::MapSpan(MemberSpan* span, size_t bytes) {
  if (span->base != nullptr || (caps_.flags & BPS_TRANSPORT_MAP_REMOTE) == 0) return true;
  void* base = nullptr;
  const int32_t code = endpoint_->transport().MapRemote(span->peer, span->remote, bytes, &base);
  if (code == BPS_OK) span->base = static_cast<std::byte*>(base);
  return code != BPS_TRANSPORT_AGAIN;
}

// Nothing of what the others have shown is used any more.
void LocalStage::LetGo(LocalRound* round) {
  for (size_t index = 0; index < members_.size(); ++index) {
    MemberSpan& input = round->memory[index].input;
    if (index == own_ || input.base == nullptr) continue;
    input.base = nullptr;
    endpoint_->transport().UnmapRemote(input.peer, input.remote);
  }
}

void LocalStage::BeginWork(LocalRound* round) {
  if (absl::Status error; !Reach(round, &error)) {
    if (!error.ok()) return GiveUp(round, error, Told(error));
    if (std::find(reaching_.begin(), reaching_.end(), round) == reaching_.end()) reaching_.push_back(round);
    return;
  }
  std::erase(reaching_, round);
  round->Move(LocalState::kWorking);
  const Submission& asked = round->operation->asked;
  const uint64_t bytes = asked.tensor->bytes();
  Slice slice;
  if (IsPushPull(*round)) {
    slice = SliceOf(bytes, own_, members_.size());
  } else if (static_cast<uint32_t>(asked.root) != members_[own_].rank) {
    slice = {0, bytes};  // everybody reads all of the root's
  }
  round->next = slice.first;
  round->end = slice.last;
  if (slice.first == slice.last) return FinishSlice(round);
  EnqueuePiece(round);
}

void LocalStage::EnqueuePiece(LocalRound* round) {
  const Submission& asked = round->operation->asked;
  round->piece_end = std::min(round->end, round->next + kPieceBytes);
  round->task = next_task_++;
  bps_task task{};
  task.struct_size = sizeof task;
  task.id = round->task;
  task.tensor = asked.tensor->cut->key();
  task.bytes = round->piece_end - round->next;
  task.priority = asked.priority;
  task.order = asked.tensor->name().order();
  task.peer = kOwnHands;
  tasks_[round->task] = round;
  ++queued_;
  pick_ = true;
  scheduler_.Enqueue(now_, task);
}

bool LocalStage::PickPiece() {
  pick_ = false;
  if (queued_ == 0) return false;
  const bps_budget budget[] = {{kOwnHands, 1, UINT64_MAX}};
  absl::StatusOr<std::optional<bps_task>> next = scheduler_.Next(now_, budget);
  if (!next.ok()) {
    halted_ = true;
    sink_->OnStageFatal(next.status());
    return false;
  }
  if (!next->has_value()) return false;
  --queued_;
  current_ = tasks_.at((*next)->id);
  return true;
}

// One block. Both the current piece and what is waited for change under it.
bool LocalStage::Work() {
  if (halted_ || stopped_) return false;
  if (current_ == nullptr && !PickPiece()) return false;
  LocalRound* round = current_;
  const uint64_t bytes = std::min<uint64_t>(BlockFold::kBlockBytes, round->piece_end - round->next);
  size_t culprit = 0;
  const int32_t code = FoldBlock(round, bytes, &culprit);
  if (code == BPS_UNAVAILABLE) {
    Lose(culprit, absl::UnavailableError("the connection to " + members_[culprit].description + " is lost"));
    return true;
  }
  if (code != BPS_OK) {
    const absl::Status why =
        MakeStatus(code, "the memory of " + members_[culprit].description + " could not be read or written");
    GiveUp(round, why, Told(why));
    return true;
  }
  round->next += bytes;
  if (round->next != round->piece_end) return true;
  EndPiece(BPS_OK);
  if (round->next != round->end) {
    EnqueuePiece(round);
  } else {
    FinishSlice(round);
  }
  return true;
}

int32_t LocalStage::FoldBlock(LocalRound* round, uint64_t bytes, size_t* culprit) {
  const Submission& asked = round->operation->asked;
  if (IsPushPull(*round)) {
    return fold_->Fold({asked.tensor->dtype(), asked.reduction}, group_sizes_, round->memory, own_, round->next, bytes,
                       round->stores, culprit);
  }
  *culprit = static_cast<size_t>(asked.root) - members_[0].rank;
  return fold_->Read(round->memory[*culprit].input, asked.output + round->next, round->next, bytes);
}

// The current piece is over.
void LocalStage::EndPiece(int32_t code) {
  LocalRound* round = std::exchange(current_, nullptr);
  pick_ = true;
  tasks_.erase(round->task);
  if (code == BPS_OK) scheduler_.Sent(now_, round->task);
  scheduler_.Complete(now_, round->task, code);
  round->task = 0;
}

void LocalStage::WithdrawTask(LocalRound* round) {
  if (round->task == 0) return;
  if (current_ == round) return EndPiece(BPS_ABORTED);
  scheduler_.Withdraw(round->task);
  tasks_.erase(round->task);
  round->task = 0;
  --queued_;
}

void LocalStage::FinishSlice(LocalRound* round) {
  round->Move(LocalState::kFinishing);
  round->voices[own_].ended = true;
  SendWord(*round, wire::RecordType::kDone, absl::OkStatus());
  MaybeLeave(round);
}

// ---- Ending ----

void LocalStage::OnWord(size_t index, wire::RecordType type, std::span<const std::byte> body) {
  wire::RoundBody word;
  if (!ReadStruct(body, &word) || word.text > body.size() - sizeof word || word.rank != members_[index].rank) {
    return Senseless(index, "a last word that makes no sense");
  }
  LocalRound* round = FindOrMake(word.key, word.round);
  if (round == nullptr) return;
  round->voices[index].ended = true;
  if (type == wire::RecordType::kGiveUp) {
    const size_t size = std::min<size_t>(word.text, kMaxReason);
    const std::string_view text(reinterpret_cast<const char*>(body.data() + sizeof word), size);
    const absl::Status why = MakeStatus(word.code == BPS_OK ? BPS_INTERNAL : word.code, text);
    if (round->failure.ok()) return GiveUp(round, why, why);
  }
  MaybeLeave(round);
}

void LocalStage::Abort(Time now, Operation* operation, const absl::Status& why) {
  now_ = now;
  LocalRound* round = FindOf(*operation);
  if (round == nullptr || !round->failure.ok()) return;
  GiveUp(round, why, Told(why));
}

// What the others hear of what went wrong here.
absl::Status LocalStage::Told(const absl::Status& why) const {
  return MakeStatus(absl::IsCancelled(why) ? BPS_ABORTED : StatusCode(why),
                    absl::StrCat(members_[own_].description, " gave up: ", absl::string_view(why.message())));
}

// `told`: what the others hear.
void LocalStage::GiveUp(LocalRound* round, const absl::Status& why, const absl::Status& told) {
  if (!round->failure.ok()) return;
  round->failure = why;
  WithdrawTask(round);
  std::erase(reaching_, round);
  LocalVoice& own = round->voices[own_];
  if (!own.ended) {
    own.ended = true;
    SendWord(*round, wire::RecordType::kGiveUp, told);
  }
  if (round->operation == nullptr) return round->Move(LocalState::kRefused);
  round->Move(LocalState::kReleasing);
  round->operation->failure = Retryable(Annotate(why, DescribeOperation(*round->operation)));
  round->release_at = After(now_, options_.release_grace);
  releasing_.push_back(round);
  MaybeLeave(round);
}

void LocalStage::MaybeLeave(LocalRound* round) {
  const bool over = round->state() == LocalState::kFinishing   ? round->AllEnded()
                    : round->state() == LocalState::kReleasing ? !round->shown || round->AllEnded()
                                                               : false;
  if (over) Leave(round);
}

// Nobody touches the operation's memory any more. Forgets the round.
void LocalStage::Leave(LocalRound* round) {
  Operation* operation = round->operation;
  if (round->state() == LocalState::kRefused) {
    operation->failure = Retryable(Annotate(round->failure, DescribeOperation(*operation)));
  }
  const absl::Status outcome = operation->failure;
  const Submission& asked = operation->asked;
  if (round->staging.region && round->shown) {
    if (outcome.ok() && IsPushPull(*round)) std::memcpy(asked.output, round->staging.base, asked.tensor->bytes());
    staging_->Return(std::move(round->staging));
  }
  if (outcome.ok() && asked.kind == wire::Operation::kBroadcast &&
      static_cast<uint32_t>(asked.root) == members_[own_].rank && asked.output != asked.input &&
      asked.tensor->bytes() != 0) {
    std::memcpy(asked.output, asked.input, asked.tensor->bytes());
  }
  Drop(operation);
  sink_->OnStageDone(operation, outcome);
}

void LocalStage::Drop(Operation* operation) {
  LocalRound* round = FindOf(*operation);
  if (round == nullptr) return;
  if (!stopped_) {
    WithdrawTask(round);
    LetGo(round);
  }
  std::erase(releasing_, round);
  std::erase(reaching_, round);
  Name& name = *names_.at(round->name_id());
  name.next = round->number() + 1;
  name.rounds.erase(name.rounds.begin(), name.rounds.lower_bound(name.next));
  --in_flight_;
}

void LocalStage::Stop() {
  if (stopped_) return;
  stopped_ = true;
  current_ = nullptr;
  for (auto& [id, name] : names_) {
    for (auto& [number, round] : name->rounds) {
      round.input = Region();
      round.output = Region();
      round.staging = Staging();
    }
  }
  staging_.reset();
  buffers_.reset();
  probe_region_ = Region();
  endpoint_.reset();
}

void LocalStage::DropFreedBuffers() {
  if (buffers_ != nullptr) buffers_->DropFreed();
}

// ---- Progress ----

bool LocalStage::Run(Time now) {
  if (stopped_) return false;
  now_ = now;
  bool worked = endpoint_->Poll(now);
  if (probes_ != 0) worked |= AnswerProbes();
  for (size_t i = 0; i < reaching_.size();) {
    LocalRound* round = reaching_[i];
    BeginWork(round);
    if (i < reaching_.size() && reaching_[i] == round) ++i;
  }
  worked |= Work();
  for (size_t i = 0; i < releasing_.size();) {
    LocalRound* round = releasing_[i];
    if (now >= round->release_at) {
      // Without the registration nobody can reach the memory any more.
      round->input = Region();
      round->output = Region();
      round->staging = Staging();
      if (const Operation* operation = round->operation; operation->asked.request != nullptr) {
        buffers_->Drop(operation->asked.request->input_buffer());
        buffers_->Drop(operation->asked.request->output_buffer());
      }
      round->shown = false;
    }
    MaybeLeave(round);
    if (i < releasing_.size() && releasing_[i] == round) ++i;
  }
  return worked;
}

Time LocalStage::NextTimer() const {
  if (stopped_) return kNever;
  if (!halted_ && (current_ != nullptr || (pick_ && queued_ > 0))) return now_;
  Time next = endpoint_->NextTimer();
  if (probes_ != 0) next = std::min(next, now_ + kProbeInterval);
  if (!reaching_.empty()) next = std::min(next, now_ + kReachInterval);
  if (queued_ > 0 && !halted_) next = std::min(next, scheduler_.WakeAt(now_));
  for (const LocalRound* round : releasing_) next = std::min(next, round->release_at);
  return next;
}

// ---- For people ----

std::string LocalStage::Names(const LocalRound& round, bool LocalVoice::*has) const {
  std::string text;
  for (size_t index = 0; index < members_.size(); ++index) {
    if (round.voices[index].*has) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", members_[index].description);
  }
  return text;
}

std::vector<Endpoint*> LocalStage::endpoints() {
  if (stopped_) return {};
  return {endpoint_.get()};
}

std::string LocalStage::WhoIsMissing(const Operation& operation) const {
  const LocalRound* round = FindOf(operation);
  if (round == nullptr) return "it has not begun";
  if (!round->AllOffered()) return "not submitted by " + Names(*round, &LocalVoice::offered);
  return "not finished by " + Names(*round, &LocalVoice::ended);
}

std::string LocalStage::Describe() const {
  std::string text;
  for (const Member& member : members_) {
    absl::StrAppend(&text, member.description, member.reached ? "" : ": not connected", "\n");
  }
  std::map<std::pair<uint64_t, uint64_t>, std::string> lines;
  for (const auto& [id, name] : names_) {
    for (const auto& [number, round] : name->rounds) lines[{id, number}] = round.Describe();
  }
  for (const auto& [key, line] : lines) absl::StrAppend(&text, line, "\n");
  return text;
}

}  // namespace byteps
