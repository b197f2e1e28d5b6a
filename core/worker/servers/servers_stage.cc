#include "core/worker/servers/servers_stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/crc32c.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/control/host_identity.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

// Between two looks whether a registration that several operations share is gone.
constexpr Time kFenceInterval = 10 * kMillisecond;

std::string DescribeServer(const control::Member& member) {
  return absl::StrCat("server ", member.rank(), " (host ", member.host().name(), ", ", member.host().address(),
                      ", pid ", member.pid(), ")");
}

}  // namespace

ServersStage::ServersStage(ServersStageOptions options, Scheduler scheduler, Logger* log)
    : options_(options),
      log_(log),
      sender_(&lanes_, options.checksum),
      queue_(std::move(scheduler), &lanes_, &transfers_, &sender_, options.outbox_bytes,
             static_cast<PushQueueSink*>(this)) {}

ServersStage::~ServersStage() { Stop(); }

Carrier* ServersStage::AddCarrier(std::string name, Transport transport, CarrierOptions options) {
  CarrierSink* sink = this;
  carriers_.push_back(std::make_unique<Carrier>(carriers_.size(), std::move(name), std::move(transport),
                                                std::move(options), sink, log_));
  return carriers_.back().get();
}

// ---- Membership ----

absl::Status ServersStage::Join(Time now, const control::Epoch& epoch, const control::Member& self) {
  own_rank_ = static_cast<uint32_t>(self.rank());
  workers_ = static_cast<uint32_t>(epoch.workers_size());
  uint64_t inline_bytes = std::min<uint64_t>(options_.inline_bytes, epoch.slot_bytes());
  const std::string link = LinkOf(self.host());
  const bool at_home = !link.empty() && std::all_of(epoch.servers().begin(), epoch.servers().end(),
                                                    [&](const auto& server) { return LinkOf(server.host()) == link; });
  for (const std::unique_ptr<Carrier>& carrier : carriers_) {
    carrier->SetSlotBytes(epoch.slot_bytes());
    inline_bytes = std::min<uint64_t>(inline_bytes, carrier->endpoint().MaxRecord() - sizeof(wire::DataHeader));
  }
  for (const control::Member& server : epoch.servers()) {
    for (int lane = 0; lane < server.lanes_size(); ++lane) {
      const control::Lane& at = server.lanes(lane);
      auto carrier = std::find_if(carriers_.begin(), carriers_.end(), [&](const std::unique_ptr<Carrier>& candidate) {
        return candidate->name() == at.transport();
      });
      if (carrier == carriers_.end()) {
        return absl::FailedPreconditionError(absl::StrCat(DescribeServer(server), " is reached over the transport \"",
                                                          at.transport(), "\", which this worker has not opened"));
      }
      const Place place{static_cast<uint32_t>(server.rank()), static_cast<uint32_t>(lane)};
      PeerSpec spec;
      spec.session = epoch.session_id();
      spec.epoch = epoch.epoch();
      spec.session_nonce = epoch.nonce();
      spec.own_member = self.member();
      spec.own_lane = 0;
      spec.member = server.member();
      spec.lane = place.lane;
      spec.address = at.address();
      spec.description = DescribeServer(server);
      spec.local_id = self.member();
      spec.id = PeerOf(place);
      if (absl::Status status = (*carrier)->endpoint().AddPeer(now, spec); !status.ok()) return status;
      lanes_.Add(spec.id, carrier->get(), spec.description);
    }
  }
  inline_bytes_ = inline_bytes;
  sender_.Join(inline_bytes, own_rank_);
  queue_.Join(epoch.slot_bytes(), inline_bytes, at_home);
  joined_ = true;
  return absl::OkStatus();
}

void ServersStage::OnReady(Carrier*, PeerId peer) {
  if (lanes_.MarkReady(peer)) queue_.Wake();
}

void ServersStage::OnPeerDown(Carrier*, PeerId, const absl::Status& why) { Fatal(why); }

void ServersStage::Fatal(const absl::Status& why) { sink_->OnStageFatal(why, 0); }

void ServersStage::OnAssigned(Tensor* tensor, std::span<const Tensor::Owed> given_up) {
  names_[wire::NameId(tensor->cut->key())] = &tensor->name();
  for (const Tensor::Owed& owed : given_up) {
    for (uint32_t part = 0; part < tensor->cut->parts(); ++part) {
      sender_.Cancel(*tensor, owed.round, owed.fingerprint, part, owed.why);
    }
  }
}

// ---- Pushing ----

// What the host must read, for a checksum, or what is so small that it travels in a record, goes through the host.
bool ServersStage::TakesDevice(const Operation& operation, const Areas& areas) {
  if (!options_.gpu_direct || options_.checksum || stopped_) return false;
  if (std::max(areas.source.bytes, areas.target.bytes) <= inline_bytes_) return false;
  const Cut& cut = *operation.asked.tensor->cut;
  asked_.clear();
  for (uint32_t part = 0; part < cut.parts(); ++part) {
    const PeerId peer = PeerOf(cut.place(part));
    if (std::find(asked_.begin(), asked_.end(), peer) != asked_.end()) continue;
    ServerLane* lane = lanes_.Has(peer) ? lanes_.Find(peer) : nullptr;
    if (lane == nullptr || !lane->carrier->TakesDevice(peer, areas)) return false;
    asked_.push_back(peer);
  }
  return true;
}

void ServersStage::Begin(Time now, Operation* operation, const Areas& areas, PartRange range) {
  now_ = now;
  const Tensor& tensor = *operation->asked.tensor;
  const Cut& cut = *tensor.cut;
  for (uint32_t part = 0; part < cut.parts(); ++part) {
    if (lanes_.Has(PeerOf(cut.place(part)))) continue;
    return Fatal(absl::InternalError(absl::StrCat("the coordinator placed part ", part, " of ", tensor.Describe(),
                                                  " on lane ", cut.place(part).lane, " of server ",
                                                  cut.place(part).server, ", which is not a member")));
  }
  const bool alone = transfers_.empty();
  if (alone) {
    meter_.Begin(now);
    queue_.OnAlone(now);
  }
  Transfer* transfer = transfers_.Add(operation);
  transfer->areas = areas;
  transfer->alone = alone;
  transfer->carried = range.size();
  transfer->partitions.resize(cut.parts());
  for (uint32_t part = 0; part < cut.parts(); ++part) {
    Partition& partition = transfer->partitions[part];
    partition.transfer = transfer;
    partition.part = part;
    partition.peer = PeerOf(cut.place(part));
    partition.first = cut.first(part);
  }
}

void ServersStage::Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) {
  now_ = now;
  Transfer* transfer = transfers_.Find(operation->id);
  if (transfer == nullptr || !transfer->failure.ok()) return;
  Partition* partition = &transfer->partitions[part];
  partition->source = source;
  partition->target = target;
  queue_.Enqueue(now, partition, OrderOf(*transfer).turn(part));
}

// With several tensors in flight all workers use one order, so that partial rows complete together.
SendOrder ServersStage::OrderOf(const Transfer& transfer) const {
  return SendOrder(*transfer.tensor().cut, transfer.alone ? own_rank_ : 0, workers_);
}

uint32_t ServersStage::PartAt(const Operation& operation, uint32_t turn) const {
  const Transfer* transfer = transfers_.Find(operation.id);
  return transfer == nullptr ? turn : OrderOf(*transfer).part(turn);
}

void ServersStage::OnPostFailed(Partition* partition, const absl::Status& why) {
  GiveUp(partition->transfer, why, true);
}

void ServersStage::OnWritten(Carrier* carrier, PeerId id, uint64_t user, int32_t code) {
  Partition* partition = sender_.OnWritten(carrier, user);
  if (partition == nullptr) return;
  Transfer* transfer = partition->transfer;
  queue_.Wake();
  if (partition->task == user) queue_.OnSent(now_, partition);
  // A lost peer fails its writes too; what matters then is said by OnPeerDown.
  if (code != BPS_OK && code != BPS_UNAVAILABLE && code != BPS_CANCELLED && transfer->failure.ok()) {
    const std::string what = absl::StrCat("writing part ", partition->part, " to ", lanes_.Describe(id), " failed");
    return GiveUp(transfer, MakeStatus(code, what), true);
  }
  MaybeLeave(transfer);
}

void ServersStage::OnRoom(Carrier*, PeerId) { queue_.Wake(); }

// ---- Results ----

Partition* ServersStage::Find(PeerId peer, uint64_t key, uint64_t round, uint32_t part) const {
  const auto name = names_.find(wire::NameId(key));
  if (name == names_.end()) return nullptr;
  const Operation* operation = name->second->operation;
  if (operation == nullptr || operation->round != round) return nullptr;
  Transfer* transfer = transfers_.Find(operation->id);
  if (transfer == nullptr || part >= transfer->partitions.size()) return nullptr;
  Partition* partition = &transfer->partitions[part];
  return partition->peer == peer && partition->away() ? partition : nullptr;
}

void ServersStage::OnRecord(Carrier* carrier, PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  switch (type) {
    case wire::RecordType::kResult:
      return OnResult(carrier, peer, body);
    case wire::RecordType::kError:
    case wire::RecordType::kSendAgain:
    case wire::RecordType::kStalled:
      return OnRound(peer, type, body);
    default:
      // Reserved for later versions, which ask only members that know them.
      BPS_LOG(*log_, kWarning) << lanes_.Describe(peer) << " sent a record of type " << static_cast<int>(type)
                               << ", which a worker does not take";
  }
}

void ServersStage::OnResult(Carrier* carrier, PeerId peer, std::span<const std::byte> body) {
  wire::DataHeader header;
  if (!ReadStruct(body, &header))
    return Fatal(absl::InternalError(lanes_.Describe(peer) + " sent a RESULT that is cut off"));
  Partition* partition = Find(peer, header.key, header.round, header.part);
  if (partition == nullptr) return OnStrayResult(carrier, peer, header);
  const Payload& target = partition->target;
  Transfer* transfer = partition->transfer;
  const uint64_t bytes = header.way == wire::PayloadWay::kNone ? 0 : target.bytes;
  if ((header.flags & wire::kFlagChecksum) != 0) partition->checksum = header.checksum;
  const bool sensible = header.key == transfer->tensor().cut->key() && header.offset == partition->first &&
                        header.elements == target.elements && header.payload_bytes == bytes &&
                        header.codec == target.codec;
  if (!sensible) return ProtocolError(peer, header, *transfer->operation);
  queue_.OnAgreedRate(now_, header.rate);
  switch (header.way) {
    case wire::PayloadWay::kNone:
      if (target.bytes != 0) break;
      return FinishPart(partition);
    case wire::PayloadWay::kInline: {
      const std::span<const std::byte> payload = body.subspan(sizeof header);
      if (payload.size() < bytes) break;
      if (!CheckResult(peer, partition, payload.first(bytes))) return;
      if (target.device.type == BPS_CUDA && bytes != 0) return FinishPart(partition, payload.data());
      if (transfer->failure.ok() && bytes != 0) std::memcpy(target.address, payload.data(), bytes);
      return FinishPart(partition);
    }
    case wire::PayloadWay::kLanded: {
      if (partition->in_place) carrier->NoteRefusal(*partition);
      const bool own = partition->result_immediate == header.immediate;
      if (!own && carrier->WindowSlot(peer, header.immediate).size() < bytes) break;
      if (!carrier->landing().Expects(header.immediate)) break;
      if (carrier->landing().Announce(header.immediate, Transfers::CookieOf(*partition))) {
        TakeLanded(carrier, peer, header.immediate, partition);
      }
      return;
    }
    case wire::PayloadWay::kInPlace:
      if (!partition->in_place || !partition->result_immediate) break;
      return FinishPart(partition);
  }
  ProtocolError(peer, header, *transfer->operation);
}

void ServersStage::ProtocolError(PeerId peer, const wire::DataHeader& header, const Operation& operation) {
  Fatal(absl::InternalError(absl::StrCat(lanes_.Describe(peer), " sent an invalid RESULT, for part ", header.part,
                                         " of ", DescribeOperation(operation))));
}

// A RESULT for a round that this worker has given up: what it fills is lent again.
void ServersStage::OnStrayResult(Carrier* carrier, PeerId peer, const wire::DataHeader& header) {
  if (header.way != wire::PayloadWay::kLanded) return;
  if (carrier->WindowOwner(header.immediate) != peer || !carrier->landing().Expects(header.immediate)) return;
  if (carrier->landing().Announce(header.immediate, 0)) carrier->ReturnWindowSlot(peer, header.immediate);
}

void ServersStage::OnLanded(Carrier* carrier, uint32_t immediate, uint64_t cookie) {
  const PeerId owner = carrier->WindowOwner(immediate);
  Partition* partition = transfers_.FindCookie(cookie);
  if (partition != nullptr && !partition->away()) partition = nullptr;
  if (owner != 0 || partition != nullptr) TakeLanded(carrier, owner, immediate, partition);
}

// Record and bytes are both here. `partition` is nullptr if they are not wanted any more.
void ServersStage::TakeLanded(Carrier* carrier, PeerId peer, uint32_t immediate, Partition* partition) {
  const bool in_window = carrier->WindowOwner(immediate) != 0;
  const bool on_device = partition != nullptr && partition->target.device.type == BPS_CUDA;
  bool whole = true;
  // A worker with BYTEPS_CHECKSUM=1 has asked for it; the host of this one cannot read what a network card has written
  // into a GPU.
  if (partition != nullptr && partition->checksum && (in_window || !on_device)) {
    const std::byte* bytes = in_window ? carrier->WindowSlot(peer, immediate).data() : partition->target.address;
    whole = CheckResult(partition->peer, partition, {bytes, partition->target.bytes});
  }
  if (in_window && on_device && whole) {
    FinishPart(std::exchange(partition, nullptr), carrier->WindowSlot(peer, immediate).data());
  }
  if (in_window) {
    if (whole && partition != nullptr && partition->transfer->failure.ok()) {
      std::memcpy(partition->target.address, carrier->WindowSlot(peer, immediate).data(), partition->target.bytes);
    }
    carrier->ReturnWindowSlot(peer, immediate);
  }
  if (whole && partition != nullptr) FinishPart(partition);
}

bool ServersStage::CheckResult(PeerId peer, Partition* partition, std::span<const std::byte> bytes) {
  const std::optional<uint32_t> told = std::exchange(partition->checksum, std::nullopt);
  Transfer* transfer = partition->transfer;
  if (!told || !transfer->failure.ok() || Crc32c(bytes) == *told) return true;
  const absl::Status why = absl::DataLossError(absl::StrCat(
      "the result of part ", partition->part, " came altered from ", lanes_.Describe(peer), ": its checksum is ",
      Crc32c(bytes), ", that of what was sent ", *told, " (BYTEPS_CHECKSUM): a network card, its driver or memory"));
  FailPart(partition);
  GiveUp(transfer, why, true);  // no other stage knows
  return false;
}

void ServersStage::OnRound(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  wire::RoundBody round;
  if (!ReadStruct(body, &round) || round.text > body.size() - sizeof round) {
    return Fatal(absl::InternalError(lanes_.Describe(peer) + " sent a record that is cut off"));
  }
  Partition* partition = Find(peer, round.key, round.round, round.part);
  if (partition == nullptr) return;
  Transfer* transfer = partition->transfer;
  if (type == wire::RecordType::kSendAgain) {
    if (!transfer->failure.ok()) return;
    if (partition->in_place) lanes_.Find(peer)->carrier->NoteRefusal(*partition);
    queue_.End(now_, partition, BPS_OK);
    return queue_.Enqueue(now_, partition, OrderOf(*transfer).turn(partition->part));
  }
  const std::string_view text(reinterpret_cast<const char*>(body.data() + sizeof round), round.text);
  if (type == wire::RecordType::kStalled) {
    if (!std::exchange(transfer->operation->stall_told, true)) {
      BPS_LOG(*log_, kWarning) << "stall: " << DescribeOperation(*transfer->operation) << ": " << text;
    }
    return;
  }
  const absl::Status why = MakeStatus(round.code == BPS_OK ? BPS_INTERNAL : round.code, text);
  // Every operation ends with the session, and with its words: the first error a caller sees is that of all later
  // calls.
  if ((round.flags & wire::kFlagSessionOver) != 0) return Fatal(why);
  // The server has nothing of this partition any more, nor will it write its result.
  FailPart(partition);
  if (transfer->failure.ok()) {
    GiveUp(transfer, why, false);
  } else {
    MaybeLeave(transfer);
  }
}

// ---- Ending ----

void ServersStage::Abort(Time now, Operation* operation, const absl::Status& why) {
  now_ = now;
  Transfer* transfer = transfers_.Find(operation->id);
  if (transfer == nullptr) {  // it has not even begun
    transfer = transfers_.Add(operation);
    const Tensor& tensor = transfer->tensor();
    for (uint32_t part = 0; part < tensor.cut->parts(); ++part) {
      sender_.Cancel(tensor, operation->round, operation->fingerprint, part, why);
    }
  }
  GiveUp(transfer, why, true);
}

void ServersStage::Withdraw(Time now, Operation* operation, const absl::Status& why) {
  now_ = now;
  Transfer* transfer = transfers_.Find(operation->id);
  if (transfer == nullptr) transfer = transfers_.Add(operation);
  GiveUp(transfer, why, false);
}

// `tell_everyone`: also the servers of partitions that have not left, or go through other workers of this host, because
// the worker that detected the failure cancels all parts: the other ranks would wait for them.
void ServersStage::GiveUp(Transfer* transfer, const absl::Status& why, bool tell_everyone) {
  if (!transfer->failure.ok()) return;
  Operation* operation = transfer->operation;
  transfer->failure = Retryable(Annotate(why, DescribeOperation(*operation)));
  transfer->release_at = After(now_, options_.release_grace);
  sink_->OnGivingUp(operation, why, !tell_everyone);
  for (Partition& partition : transfer->partitions) {
    const PartitionState state = partition.state();
    if (state == PartitionState::kHome || state == PartitionState::kFailed) continue;
    if (partition.away() || tell_everyone) {
      sender_.Cancel(transfer->tensor(), operation->round, operation->fingerprint, partition.part, why);
    }
    queue_.End(now_, &partition, StatusCode(why));
    // What the server may still read or write stays as it is until the server says that it will not.
    if (!partition.away() || !partition.exposed()) FailPart(&partition);
  }
  queue_.Wake();
  releasing_.push_back(transfer);
  MaybeLeave(transfer);
}

// The result is where it belongs.
void ServersStage::FinishPart(Partition* partition, const std::byte* on_host) {
  Transfer* transfer = partition->transfer;
  if (!transfer->failure.ok()) {
    FailPart(partition);
    return MaybeLeave(transfer);
  }
  queue_.End(now_, partition, BPS_OK);
  lanes_.Find(partition->peer)->carrier->EndExposure(partition);
  // A result that came before it was seen that its bytes had left.
  if (partition->state() == PartitionState::kPosted) {
    transfer->operation->NotePart(TimelineEvent::kPushed, now_, partition->part);
  }
  partition->Move(PartitionState::kHome);
  transfer->operation->NotePart(TimelineEvent::kHome, now_, partition->part);
  NoteTime(*partition);
  meter_.Add(now_, partition->target.bytes);
  ++transfer->home;
  queue_.Wake();
  Payload result = partition->target;
  if (on_host != nullptr) {
    result.address = const_cast<std::byte*>(on_host);
    result.device = Device();
  }
  sink_->OnPartHome(transfer->operation, partition->part, result);
  MaybeLeave(transfer);
}

// Names the server that holds up all others.
void ServersStage::NoteTime(const Partition& partition) {
  slow_servers_.Add(wire::ServerOf(partition.peer), now_ - partition.posted_at);
  const std::optional<SlowServers::Finding> slow = slow_servers_.Check(now_);
  if (!slow.has_value()) return;
  BPS_LOG(*log_, kWarning) << lanes_.Describe(PeerOf({slow->server, 0})) << " is slow: a partition takes "
                           << slow->mean / kMillisecond << " ms from its push to its result, with the other servers "
                           << slow->others / kMillisecond
                           << " ms; every tensor waits for it. Look at its network link and its CPU";
}

// The partition is over without a result.
void ServersStage::FailPart(Partition* partition) {
  queue_.End(now_, partition, BPS_ABORTED);
  lanes_.Find(partition->peer)->carrier->EndExposure(partition);
  partition->Move(PartitionState::kFailed);
  partition->transfer->operation->NotePart(TimelineEvent::kFailed, now_, partition->part);
}

// A transfer leaves when all is home or given up, and nothing uses its memory.
void ServersStage::MaybeLeave(Transfer* transfer) {
  if (transfer->writes != 0) return;
  const absl::Status outcome = transfer->failure;
  if (outcome.ok() ? transfer->home != transfer->carried : transfer->exposed != 0) return;
  if (outcome.ok() && transfer->exposed == 0) {
    for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->Keep(transfer);
  }
  Operation* operation = transfer->operation;
  Remove(transfer);
  sink_->OnStageDone(operation, outcome);
}

void ServersStage::Remove(Transfer* transfer) {
  std::erase(releasing_, transfer);
  transfers_.Remove(transfer);
}

void ServersStage::Drop(Operation* operation) {
  if (Transfer* transfer = transfers_.Find(operation->id); transfer != nullptr) Remove(transfer);
}

void ServersStage::Stop() {
  if (stopped_) return;
  stopped_ = true;
  transfers_.ForEach([](Transfer* transfer) { transfer->memory.clear(); });
  for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->Stop();
  sender_.Stop();
  queue_.Stop();
}

void ServersStage::DropFreedBuffers() {
  if (stopped_) return;
  for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->DropFreedBuffers();
}

// ---- Progress ----

bool ServersStage::Run(Time now) {
  if (stopped_) return false;
  now_ = now;
  queue_.CheckTimers(now);
  bool worked = queue_.Run(now);
  for (const std::unique_ptr<Carrier>& carrier : carriers_) worked |= carrier->endpoint().Poll(now);
  worked |= queue_.SettleOutboxes(now);
  if (queue_.Run(now)) {
    // What has just become possible leaves at once.
    for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->endpoint().Poll(now);
    queue_.SettleOutboxes(now);
    worked = true;
  }
  Release(now);
  return worked;
}

// Looks after what was given up.
void ServersStage::Release(Time now) {
  for (size_t i = 0; i < releasing_.size();) {
    Transfer* transfer = releasing_[i];
    // Without the registration no server can reach the memory any more. (Writes of ours end by themselves.)
    if (now >= transfer->release_at && transfer->exposed != 0) {
      bool gone = true;
      for (const std::unique_ptr<Carrier>& carrier : carriers_) gone &= carrier->TakeAway(transfer);
      if (!gone) {
        transfer->release_at = After(now, kFenceInterval);
        ++i;
        continue;
      }
      for (Partition& partition : transfer->partitions) {
        if (partition.away()) FailPart(&partition);
      }
      transfer->release_at = kNever;
    }
    MaybeLeave(transfer);
    if (i < releasing_.size() && releasing_[i] == transfer) ++i;
  }
}

Time ServersStage::NextTimer() const {
  if (stopped_) return kNever;
  Time next = queue_.NextTimer(now_);
  for (const std::unique_ptr<Carrier>& carrier : carriers_) next = std::min(next, carrier->endpoint().NextTimer());
  for (const Transfer* transfer : releasing_) next = std::min(next, transfer->release_at);
  return next;
}

void ServersStage::AddEndpoints(std::vector<Endpoint*>* all) {
  if (stopped_) return;
  for (const std::unique_ptr<Carrier>& carrier : carriers_) all->push_back(&carrier->endpoint());
}

std::string ServersStage::WhoIsMissing(const Operation& operation) const {
  std::vector<PeerId> seen;
  std::string text;
  const Transfer* transfer = transfers_.Find(operation.id);
  if (transfer == nullptr) return text;
  for (const Partition& partition : transfer->partitions) {
    const bool waits = partition.state() != PartitionState::kHome && partition.state() != PartitionState::kIdle;
    if (!waits || std::count(seen.begin(), seen.end(), partition.peer) != 0) continue;
    seen.push_back(partition.peer);
    absl::StrAppend(&text, text.empty() ? "no answer from " : "; ", lanes_.Describe(partition.peer), ": part ",
                    partition.part, " is ", PartitionStateName(partition.state()));
    if (partition.state() == PartitionState::kQueued) {
      absl::StrAppend(&text, ": scheduler \"", queue_.scheduler_name(), "\" has not given it out");
    }
  }
  return text;
}

}  // namespace byteps
