#include "core/worker/servers/servers_stage.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/crc32c.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/control/host_identity.h"
#include "core/wire/message.h"
#include "core/wire/push_head.h"
#include "core/worker/tensor/send_order.h"

namespace byteps {
namespace {

// Cookies of landings: the operation's number and the part. 0: nobody's.
constexpr int kPartBits = 24;
constexpr size_t kMostReason = 2048;  // bytes, of a CANCEL

// Two rows. What a worker has sent is worth nothing before all the others have sent it, too. Of a tensor that is alone
// it keeps two parts for each server under way, one that is sent and one that is folded: with more the kernel, which
// sends for all connections at the same time, lets some run ahead of others, each worker other ones, and results wait
// for the last; and what is under way falls out of the caches. (A server that has more to do than others may have more
// of them: all its slots.) Where all servers share this worker's link, so that nothing crosses a network and the
// processors are the bound, one row does, and stays in the caches. All workers send parts in nearly the same order, so
// that some part is always complete; where they do not (a scheduler with an order of its own), nothing comes back, and
// after a while the rest goes, too.
constexpr size_t kRowsAhead = 2;
constexpr size_t kRowsAheadAtHome = 1;
constexpr Time kRowsPatience = 100 * kMillisecond;

uint64_t NameId(uint64_t key) { return key >> 16; }

std::string DescribeServer(const control::Member& member) {
  return absl::StrCat("server ", member.rank(), " (host ", member.host().name(), ", ", member.host().address(),
                      ", pid ", member.pid(), ")");
}

}  // namespace

ServersStage::ServersStage(ServersStageOptions options, Scheduler scheduler, StageSink* sink, Logger* log)
    : options_(options), scheduler_(std::move(scheduler)), sink_(sink), log_(log) {}

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
  slot_bytes_ = epoch.slot_bytes();
  inline_bytes_ = std::min(options_.inline_bytes, slot_bytes_);
  const std::string link = LinkOf(self.host());
  const bool at_home = !link.empty() && std::all_of(epoch.servers().begin(), epoch.servers().end(),
                                                    [&](const auto& server) { return LinkOf(server.host()) == link; });
  rows_ahead_ = at_home ? kRowsAheadAtHome : kRowsAhead;
  for (const std::unique_ptr<Carrier>& carrier : carriers_) {
    carrier->SetSlotBytes(slot_bytes_);
    inline_bytes_ = std::min<uint64_t>(inline_bytes_, carrier->endpoint().MaxRecord() - sizeof(wire::DataHeader));
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
      Peer peer(&memory_);
      peer.id = spec.id;
      peer.carrier = carrier->get();
      peer.description = spec.description;
      peer_index_[peer.id] = peers_.size();
      budgets_.push_back({peer.id, 0, 0});
      peers_.push_back(std::move(peer));
    }
  }
  std::vector<uint32_t> ids;
  for (const Peer& peer : peers_) ids.push_back(peer.id);
  scheduler_.Peers(ids);
  agreed_rate_ = 0;
  joined_ = true;
  return absl::OkStatus();
}

std::string ServersStage::missing() const {
  std::string text;
  for (const Peer& peer : peers_) {
    if (!peer.ready) absl::StrAppend(&text, text.empty() ? "" : ", ", peer.description);
  }
  return text;
}

ServersStage::Peer* ServersStage::FindPeer(PeerId id) {
  auto it = peer_index_.find(id);
  return it == peer_index_.end() ? nullptr : &peers_[it->second];
}

const ServersStage::Peer* ServersStage::FindPeer(PeerId id) const {
  return const_cast<ServersStage*>(this)->FindPeer(id);
}

std::string ServersStage::DescribePeer(PeerId id) const {
  const Peer* peer = FindPeer(id);
  return peer == nullptr ? absl::StrCat("peer ", id) : peer->description;
}

void ServersStage::OnReady(Carrier*, PeerId id) {
  Peer* peer = FindPeer(id);
  if (peer == nullptr || peer->ready) return;
  peer->ready = true;
  ++ready_peers_;
  pump_ = true;
}

void ServersStage::OnPeerDown(Carrier*, PeerId, const absl::Status& why) { Fatal(why); }

void ServersStage::Fatal(const absl::Status& why) { sink_->OnStageFatal(why, 0); }

void ServersStage::Know(Tensor* tensor, std::span<const Tensor::Owed> given_up) {
  names_[NameId(tensor->cut->key())] = &tensor->name();
  for (const Tensor::Owed& owed : given_up) {
    for (uint32_t part = 0; part < tensor->cut->parts(); ++part) {
      SendCancel(*tensor, owed.round, owed.fingerprint, part, owed.why);
    }
  }
}

// ---- Sending ----

void ServersStage::Start(Time now, Operation* operation) {
  operation->source = operation->asked.input;
  Begin(now, operation, {0, operation->asked.tensor->cut->parts()});
  const SendOrder order = OrderOf(*operation);
  for (uint32_t turn = 0; turn < operation->partitions.size(); ++turn) Push(now, operation, order.part(turn));
}

void ServersStage::Push(Time now, Operation* operation, uint32_t part) {
  now_ = now;
  if (part < operation->partitions.size()) Enqueue(&operation->partitions[part]);
}

void ServersStage::Begin(Time now, Operation* operation, PartRange range) {
  now_ = now;
  const Submission& asked = operation->asked;
  const Cut& cut = *asked.tensor->cut;
  const bool root = asked.kind == wire::Operation::kBroadcast && static_cast<uint32_t>(asked.root) == own_rank_;
  operation->alone = operations_.empty();
  if (operation->alone) {
    meter_.Begin(now);
    slot_came_ = now;
  }
  operations_[operation->id] = operation;
  operation->partitions.resize(cut.parts());
  operation->carried = range.size();
  for (uint32_t part = 0; part < cut.parts(); ++part) {
    if (!peer_index_.contains(PeerOf(cut.place(part)))) {
      operation->partitions.clear();
      Fatal(absl::InternalError(absl::StrCat("the coordinator placed part ", part, " of ", asked.tensor->Describe(),
                                             " on lane ", cut.place(part).lane, " of server ", cut.place(part).server,
                                             ", which is not a member")));
      return;
    }
    Partition& partition = operation->partitions[part];
    partition.operation = operation;
    partition.part = part;
    partition.peer = PeerOf(cut.place(part));
    partition.first = cut.first(part);
    partition.elements = cut.count(part);
    const uint64_t bytes = partition.elements * asked.tensor->element_bytes();
    partition.push_bytes = asked.kind == wire::Operation::kPushPull || root ? bytes : 0;
    partition.result_bytes = root ? 0 : bytes;
  }
}

// What is interrupted by something more urgent in the middle of a row lacks another part on every worker if each has begun
// it elsewhere: where several tensors are under way all keep to one order.
SendOrder ServersStage::OrderOf(const Operation& operation) const {
  return SendOrder(*operation.asked.tensor->cut, operation.alone ? own_rank_ : 0, workers_);
}

void ServersStage::Enqueue(Partition* partition) {
  const Submission& asked = partition->operation->asked;
  partition->Move(PartitionState::kQueued);
  partition->task = next_task_++;
  partition->sent = false;
  bps_task task{};
  task.struct_size = sizeof task;
  task.id = partition->task;
  task.tensor = asked.tensor->cut->key();
  task.bytes = partition->push_bytes;
  task.priority = asked.priority;
  task.order = asked.tensor->name().order();
  task.part = OrderOf(*partition->operation).turn(partition->part);
  task.peer = partition->peer;
  task.round = static_cast<uint32_t>(partition->operation->round + 1);
  tasks_[partition->task] = partition;
  ++queued_;
  pump_ = true;
  scheduler_.Enqueue(now_, task);
}

// What the peer can take now: anything while there is a slot, or if none is ever needed, small payloads otherwise, and
// nothing while its outbox is full or something chosen before still waits. (Where only some tensors need slots, the others
// wait with them: whoever holds all slots gives one back soon.)
void ServersStage::UpdateBudget(size_t index) {
  Peer& peer = peers_[index];
  bps_budget& budget = budgets_[index];
  Endpoint& endpoint = peer.carrier->endpoint();
  peer.full = endpoint.Queued(peer.id) >= options_.outbox_bytes;
  budget.tasks = peer.ready && peer.held.empty() && !peer.full ? 1 : 0;
  const bool any = peer.carrier->copies(peer.id) || endpoint.FreeSlots(peer.id) > 0;
  budget.bytes = any ? slot_bytes_ : inline_bytes_;
  const size_t taken = endpoint.TakenSlots(peer.id);
  if (taken < peer.taken_slots) slot_came_ = now_;
  taken_slots_ += taken - peer.taken_slots;
  peer.taken_slots = taken;
}

// See "Two rows".
bool ServersStage::FarEnough() const {
  if (taken_slots_ < rows_ahead_ * peers_.size() || operations_.size() != 1) return false;
  const Operation& operation = *operations_.begin()->second;
  // What comes from the local stage comes in an order of its own.
  const bool whole = operation.carried == operation.partitions.size();
  return operation.alone && whole && now_ < slot_came_ + kRowsPatience;
}

bool ServersStage::Pump() {
  if (!pump_) return false;
  pump_ = false;
  if (queued_ == 0 && held_ == 0) return false;
  bool worked = false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    while (!peer.held.empty()) {
      Partition* partition = peer.held.front();
      absl::Status error;
      if (!Post(partition, &peer, &error) && error.ok()) break;
      if (!error.ok()) {
        GiveUp(partition->operation, error, true);  // takes it off the list
      } else {
        peer.held.pop_front();
        --held_;
      }
      worked = true;
    }
    UpdateBudget(i);
  }
  held_back_until_ = kNever;
  while (queued_ > 0 && !stopped_) {
    if (FarEnough()) {
      held_back_until_ = slot_came_ + kRowsPatience;
      break;
    }
    absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler_.Next(now_, budgets_);
    if (!next.ok()) {
      Fatal(next.status());
      return worked;
    }
    if (!next->has_value()) break;
    worked = true;
    --queued_;
    Partition* partition = tasks_.at((*next)->id);
    const size_t index = peer_index_.at(partition->peer);
    absl::Status error;
    if (!Post(partition, &peers_[index], &error)) {
      partition->Move(PartitionState::kHeld);
      peers_[index].held.push_back(partition);
      ++held_;
      if (!error.ok()) GiveUp(partition->operation, error, true);
    }
    UpdateBudget(index);
  }
  return worked;
}

wire::DataHeader ServersStage::HeaderOf(const Partition& partition) const {
  const Operation& operation = *partition.operation;
  const Submission& asked = operation.asked;
  wire::DataHeader header{};
  header.key = asked.tensor->cut->key();
  header.fingerprint = operation.fingerprint;
  header.round = operation.round;
  header.offset = partition.first;
  header.elements = partition.elements;
  header.payload_bytes = partition.push_bytes;
  header.part = partition.part;
  header.parts = asked.tensor->cut->parts();
  header.rank = own_rank_;
  header.dtype = asked.tensor->dtype();
  header.wire_dtype = asked.tensor->dtype();
  header.root = asked.kind == wire::Operation::kBroadcast ? asked.root : 0;
  const Time patience = std::max<Time>(operation.deadline - now_, 0) / kMillisecond;
  header.timeout_ms = static_cast<uint32_t>(std::clamp<Time>(patience, 1, std::numeric_limits<uint32_t>::max()));
  header.operation = asked.kind;
  header.reduction = static_cast<uint8_t>(asked.reduction);
  header.priority = asked.priority;
  header.rate = static_cast<uint32_t>(std::min<uint64_t>(scheduler_.Rate(), std::numeric_limits<uint32_t>::max()));
  return header;
}

bool ServersStage::Post(Partition* partition, Peer* peer, absl::Status* error) {
  Operation* operation = partition->operation;
  Carrier* carrier = peer->carrier;
  wire::DataHeader header = HeaderOf(*partition);
  if (partition->result_bytes > inline_bytes_ && carrier->direct(peer->id)) {
    switch (carrier->Expose(partition, &header.memory, error)) {
      case Carrier::Grant::kYes:
        break;
      case Carrier::Grant::kLater:
      case Carrier::Grant::kFailed:
        return false;
    }
  }
  if (partition->push_bytes > inline_bytes_) {
    const bool posted = carrier->InPlace(*partition) ? PostInPlace(partition, peer, &header, error)
                                                     : PostPayload(partition, peer, &header, error);
    if (!posted) return false;
  } else {
    const std::byte* bytes = operation->source + partition->first * operation->asked.tensor->element_bytes();
    PostInline(partition, peer, header, {bytes, partition->push_bytes});
  }
  operation->pushed_any = true;
  partition->posted_at = now_;
  operation->asked.request->Advance(RequestState::kActive);
  return true;
}

void ServersStage::AddChecksum(std::span<const std::byte> payload, wire::DataHeader* header) {
  header->flags |= wire::kFlagChecksum;
  header->checksum = Crc32c(payload);
}

bool ServersStage::PostPayload(Partition* partition, Peer* peer, wire::DataHeader* header, absl::Status* error) {
  Endpoint& endpoint = peer->carrier->endpoint();
  const std::optional<RemoteSlot> slot = endpoint.TakeSlot(peer->id);
  if (!slot) return false;
  Payload payload;
  if (slot->bytes < partition->push_bytes) {
    *error = absl::InternalError(absl::StrCat("a partition of ", partition->push_bytes, " bytes is too large for the ",
                                              slot->bytes, " byte slots of ", peer->description));
  }
  if (!error->ok() || peer->carrier->Source(partition, &payload, error) != Carrier::Grant::kYes) {
    endpoint.GiveBack(peer->id, *slot);
    return false;
  }
  header->way = wire::PayloadWay::kLanded;
  header->immediate = slot->immediate;
  if (options_.checksum) {
    AddChecksum({static_cast<const std::byte*>(payload.local.base), partition->push_bytes}, header);
  }
  const PushHead head(*header, partition->operation->asked.tensor->shape(), endpoint.MaxRecord());
  if (!endpoint.WriteSlot(peer->id, payload.local, partition->push_bytes, *slot, partition->task,
                          {wire::RecordType::kPush, head.bytes()})) {
    peer->carrier->EndSource(payload);
    endpoint.GiveBack(peer->id, *slot);
    return false;
  }
  peer->queued_bytes += RecordSize(head.bytes().size(), 0);
  writes_[partition->task] = {partition, payload};
  ++partition->operation->writes;
  partition->Move(PartitionState::kPosted);
  return true;
}

// The announcement is all that travels.
bool ServersStage::PostInPlace(Partition* partition, Peer* peer, wire::DataHeader* header, absl::Status* error) {
  wire::MemoryRef source{};
  if (peer->carrier->Show(partition, &source, error) != Carrier::Grant::kYes) return false;
  header->way = wire::PayloadWay::kInPlace;
  partition->Move(PartitionState::kPosted);
  SendPush(peer, *header, *partition->operation->asked.tensor, BytesOf(source));
  peer->leaving.emplace_back(peer->queued_bytes, partition->task);
  return true;
}

void ServersStage::PostInline(Partition* partition, Peer* peer, const wire::DataHeader& header,
                              std::span<const std::byte> payload) {
  wire::DataHeader with_way = header;
  with_way.way = payload.empty() ? wire::PayloadWay::kNone : wire::PayloadWay::kInline;
  // Also of no payload: it says that the result is to have one.
  if (options_.checksum) AddChecksum(payload, &with_way);
  partition->Move(PartitionState::kPosted);
  SendPush(peer, with_way, *partition->operation->asked.tensor, payload);
  peer->leaving.emplace_back(peer->queued_bytes, partition->task);
}

void ServersStage::SendPush(Peer* peer, const wire::DataHeader& header, const Tensor& tensor,
                            std::span<const std::byte> payload) {
  const PushHead head(header, tensor.shape(), peer->carrier->endpoint().MaxRecord() - payload.size());
  Send(peer, wire::RecordType::kPush, head.bytes(), payload);
}

void ServersStage::Send(Peer* peer, wire::RecordType type, std::span<const std::byte> fixed,
                        std::span<const std::byte> payload) {
  peer->queued_bytes += RecordSize(fixed.size(), payload.size());
  peer->carrier->endpoint().Send(peer->id, type, fixed, payload);
}

void ServersStage::SendCancel(const Tensor& tensor, uint64_t round, uint64_t fingerprint, uint32_t part,
                              const absl::Status& why) {
  Peer* peer = FindPeer(PeerOf(tensor.cut->place(part)));
  if (peer == nullptr) return;
  wire::RoundBody body{};
  // Enough for both sides of a disagreement, with some ranks' names.
  const size_t room = std::min(kMostReason, peer->carrier->endpoint().MaxRecord() - sizeof body);
  const absl::string_view text = why.message().substr(0, room);
  body.key = tensor.cut->key();
  body.fingerprint = fingerprint;
  body.round = round;
  body.part = part;
  body.rank = own_rank_;
  body.code = StatusCode(why);
  body.text = static_cast<uint32_t>(text.size());
  Send(peer, wire::RecordType::kCancel, BytesOf(body), std::as_bytes(std::span<const char>(text.data(), text.size())));
}

// The partition's bytes have left: the scheduler's credit returns.
void ServersStage::Left(Partition* partition) {
  if (!partition->sent) {
    partition->sent = true;
    scheduler_.Sent(now_, partition->task);
  }
  if (partition->state() == PartitionState::kPosted) partition->Move(PartitionState::kPushed);
  pump_ = true;
}

// A record without a write has left when what still waits in the outbox is no more than what was queued behind it.
// (Records of the endpoint itself wait there too: then this is known a little later.)
bool ServersStage::SettleOutboxes() {
  bool worked = false;
  for (Peer& peer : peers_) {
    if (peer.leaving.empty() && !peer.full) continue;
    const size_t waiting = peer.carrier->endpoint().Queued(peer.id);
    // What has filled it may have been CANCELs alone, which nobody else waits for.
    if (peer.full && waiting < options_.outbox_bytes) {
      peer.full = false;
      pump_ = true;
      worked = true;
    }
    while (!peer.leaving.empty() && peer.queued_bytes - peer.leaving.front().first >= waiting) {
      auto task = tasks_.find(peer.leaving.front().second);
      peer.leaving.pop_front();
      worked = true;
      if (task != tasks_.end()) Left(task->second);
    }
  }
  return worked;
}

void ServersStage::EndTask(Partition* partition, int32_t code) {
  if (partition->task == 0) return;
  if (partition->state() == PartitionState::kQueued) {
    scheduler_.Withdraw(partition->task);
    --queued_;
  } else {
    scheduler_.Complete(now_, partition->task, code);
  }
  tasks_.erase(partition->task);
  partition->task = 0;
}

void ServersStage::OnWritten(Carrier* carrier, PeerId id, uint64_t user, int32_t code) {
  auto it = writes_.find(user);
  if (it == writes_.end()) return;
  const Write write = it->second;
  writes_.erase(it);
  carrier->EndSource(write.payload);
  Partition* partition = write.partition;
  Operation* operation = partition->operation;
  --operation->writes;
  pump_ = true;
  if (partition->task == user) Left(partition);
  // A lost peer fails its writes too; what matters then is said by OnPeerDown.
  if (code != BPS_OK && code != BPS_UNAVAILABLE && code != BPS_CANCELLED && operation->failure.ok()) {
    GiveUp(operation,
           MakeStatus(code, absl::StrCat("writing part ", partition->part, " to ", DescribePeer(id), " failed")), true);
    return;
  }
  MaybeLeave(operation);
}

void ServersStage::OnRoom(Carrier*, PeerId) { pump_ = true; }

// ---- Receiving ----

uint64_t ServersStage::CookieOf(const Partition& partition) const {
  return partition.operation->id << kPartBits | partition.part;
}

Partition* ServersStage::FindCookie(uint64_t cookie) const {
  auto it = operations_.find(cookie >> kPartBits);
  if (it == operations_.end()) return nullptr;
  return &it->second->partitions[cookie & ((uint64_t{1} << kPartBits) - 1)];
}

// The partition that awaits an answer from this peer in this round; nullptr if it is over.
Partition* ServersStage::Find(PeerId peer, uint64_t key, uint64_t round, uint32_t part) const {
  auto it = names_.find(NameId(key));
  if (it == names_.end()) return nullptr;
  Operation* operation = it->second->operation;
  if (operation == nullptr || operation->round != round || part >= operation->partitions.size()) return nullptr;
  Partition* partition = &operation->partitions[part];
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
      BPS_LOG(*log_, kWarning) << DescribePeer(peer) << " sent a record of type " << static_cast<int>(type)
                               << ", which a worker does not take";
  }
}

void ServersStage::OnResult(Carrier* carrier, PeerId peer, std::span<const std::byte> body) {
  wire::DataHeader header;
  if (!ReadStruct(body, &header))
    return Fatal(absl::InternalError(DescribePeer(peer) + " sent a RESULT that is cut off"));
  Partition* partition = Find(peer, header.key, header.round, header.part);
  if (partition == nullptr) return OnStray(carrier, peer, header);
  Operation* operation = partition->operation;
  const uint64_t bytes = header.way == wire::PayloadWay::kNone ? 0 : partition->result_bytes;
  if ((header.flags & wire::kFlagChecksum) != 0) partition->checksum = header.checksum;
  const bool sensible = header.key == operation->asked.tensor->cut->key() && header.offset == partition->first &&
                        header.elements == partition->elements && header.payload_bytes == bytes && header.codec == 0;
  if (!sensible) return Senseless(peer, header, *operation);
  Hear(header.rate);
  switch (header.way) {
    case wire::PayloadWay::kNone:
      if (partition->result_bytes != 0) break;
      return Home(partition);
    case wire::PayloadWay::kInline: {
      const std::span<const std::byte> payload = body.subspan(sizeof header);
      if (payload.size() < bytes) break;
      if (!Unaltered(peer, partition, payload.first(bytes))) return;
      if (operation->failure.ok() && bytes != 0) {
        std::memcpy(operation->asked.output + partition->first * operation->asked.tensor->element_bytes(),
                    payload.data(), bytes);
      }
      return Home(partition);
    }
    case wire::PayloadWay::kLanded: {
      if (partition->in_place) carrier->NoteRefusal(*partition);
      const bool own = partition->result_immediate == header.immediate;
      if (!own && carrier->WindowSlot(peer, header.immediate).size() < bytes) break;
      if (!carrier->landing().Expects(header.immediate)) break;
      if (carrier->landing().Announce(header.immediate, CookieOf(*partition))) {
        Landed(carrier, peer, header.immediate, partition);
      }
      return;
    }
    case wire::PayloadWay::kInPlace:
      if (!partition->in_place || !partition->result_immediate) break;
      return Home(partition);
  }
  Senseless(peer, header, *operation);
}

// What all workers' links carry, as the slowest has told.
void ServersStage::Hear(uint32_t rate) {
  if (rate == 0 || rate == agreed_rate_) return;
  agreed_rate_ = rate;
  scheduler_.Agreed(now_, rate);
  pump_ = true;
}

void ServersStage::Senseless(PeerId peer, const wire::DataHeader& header, const Operation& operation) {
  Fatal(absl::InternalError(absl::StrCat(DescribePeer(peer), " sent a RESULT that makes no sense, for part ",
                                         header.part, " of ", DescribeOperation(operation))));
}

// A RESULT for a round that this worker has given up: what it fills is lent again.
void ServersStage::OnStray(Carrier* carrier, PeerId peer, const wire::DataHeader& header) {
  if (header.way != wire::PayloadWay::kLanded) return;
  if (carrier->WindowOwner(header.immediate) != peer || !carrier->landing().Expects(header.immediate)) return;
  if (carrier->landing().Announce(header.immediate, 0)) carrier->ReturnWindowSlot(peer, header.immediate);
}

void ServersStage::OnLanded(Carrier* carrier, uint32_t immediate, uint64_t cookie) {
  const PeerId owner = carrier->WindowOwner(immediate);
  Partition* partition = FindCookie(cookie);
  if (partition != nullptr && !partition->away()) partition = nullptr;
  if (owner != 0 || partition != nullptr) Landed(carrier, owner, immediate, partition);
}

// Record and bytes are both here. `partition` is nullptr if nobody wants them any more.
void ServersStage::Landed(Carrier* carrier, PeerId peer, uint32_t immediate, Partition* partition) {
  const bool in_window = carrier->WindowOwner(immediate) != 0;
  bool unaltered = true;
  if (partition != nullptr && partition->checksum) {
    const Submission& asked = partition->operation->asked;
    const std::byte* bytes = in_window ? carrier->WindowSlot(peer, immediate).data()
                                       : asked.output + partition->first * asked.tensor->element_bytes();
    unaltered = Unaltered(partition->peer, partition, {bytes, partition->result_bytes});
  }
  if (in_window) {
    if (unaltered && partition != nullptr && partition->operation->failure.ok()) {
      const Submission& asked = partition->operation->asked;
      std::memcpy(asked.output + partition->first * asked.tensor->element_bytes(),
                  carrier->WindowSlot(peer, immediate).data(), partition->result_bytes);
    }
    carrier->ReturnWindowSlot(peer, immediate);
  }
  if (unaltered && partition != nullptr) Home(partition);
}

bool ServersStage::Unaltered(PeerId peer, Partition* partition, std::span<const std::byte> bytes) {
  const std::optional<uint32_t> told = std::exchange(partition->checksum, std::nullopt);
  Operation* operation = partition->operation;
  if (!told || !operation->failure.ok() || Crc32c(bytes) == *told) return true;
  const absl::Status why = absl::DataLossError(absl::StrCat(
      "the result of part ", partition->part, " came altered from ", DescribePeer(peer), ": its checksum is ",
      Crc32c(bytes), ", that of what was sent ", *told, " (BYTEPS_CHECKSUM): a network card, its driver or memory"));
  Lost(partition);
  GiveUp(operation, why, false);
  return false;
}

void ServersStage::OnRound(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  wire::RoundBody round;
  if (!ReadStruct(body, &round) || round.text > body.size() - sizeof round) {
    return Fatal(absl::InternalError(DescribePeer(peer) + " sent a record that is cut off"));
  }
  Partition* partition = Find(peer, round.key, round.round, round.part);
  if (partition == nullptr) return;
  Operation* operation = partition->operation;
  if (type == wire::RecordType::kSendAgain) {
    if (!operation->failure.ok()) return;
    if (partition->in_place) FindPeer(peer)->carrier->NoteRefusal(*partition);
    EndTask(partition, BPS_OK);
    Enqueue(partition);
    return;
  }
  const std::string_view text(reinterpret_cast<const char*>(body.data() + sizeof round), round.text);
  if (type == wire::RecordType::kStalled) {
    if (!std::exchange(operation->stall_told, true)) {
      BPS_LOG(*log_, kWarning) << "stall: " << DescribeOperation(*operation) << ": " << text;
    }
    return;
  }
  const absl::Status why = MakeStatus(round.code == BPS_OK ? BPS_INTERNAL : round.code, text);
  // Every operation ends with the session, and with its words: the first error a caller sees is that of all later calls.
  if ((round.flags & wire::kFlagSessionOver) != 0) return Fatal(why);
  // The server has nothing of this partition any more, nor will it write its result.
  if (operation->failure.ok()) {
    Lost(partition);
    GiveUp(operation, why, false);
  } else {
    Lost(partition);
    MaybeLeave(operation);
  }
}

// ---- Ending ----

void ServersStage::Abort(Time now, Operation* operation, const absl::Status& why) {
  now_ = now;
  GiveUp(operation, why, true);
}

void ServersStage::Withdraw(Time now, Operation* operation, const absl::Status& why) {
  now_ = now;
  GiveUp(operation, why, false);
}

// `tell_everyone`: also the servers of partitions that have not left, or go through other workers of this host, because
// the cause is here and the other ranks would wait for them.
void ServersStage::GiveUp(Operation* operation, const absl::Status& why, bool tell_everyone) {
  if (!operation->failure.ok()) return;
  operation->failure = Retryable(Annotate(why, DescribeOperation(*operation)));
  operation->release_at = now_ + options_.release_grace;
  sink_->OnGivingUp(operation, why, !tell_everyone);
  if (operation->partitions.empty() && tell_everyone) {  // it has not even begun
    const Tensor& tensor = *operation->asked.tensor;
    for (uint32_t part = 0; part < tensor.cut->parts(); ++part) {
      SendCancel(tensor, operation->round, operation->fingerprint, part, why);
    }
  }
  for (Partition& partition : operation->partitions) {
    const PartitionState state = partition.state();
    if (state == PartitionState::kHome || state == PartitionState::kFailed) continue;
    if (partition.away() || tell_everyone) {
      SendCancel(*operation->asked.tensor, operation->round, operation->fingerprint, partition.part, why);
    }
    EndTask(&partition, StatusCode(why));
    if (state == PartitionState::kHeld) {
      std::erase(FindPeer(partition.peer)->held, &partition);
      --held_;
    }
    // What the server may still read or write stays as it is until the server says that it will not.
    if (!partition.away() || !partition.exposed()) Lost(&partition);
  }
  pump_ = true;
  releasing_.push_back(operation);
  MaybeLeave(operation);
}

void ServersStage::Home(Partition* partition) {
  Operation* operation = partition->operation;
  if (!operation->failure.ok()) {
    Lost(partition);
    MaybeLeave(operation);
    return;
  }
  EndTask(partition, BPS_OK);
  FindPeer(partition->peer)->carrier->EndExposure(partition);
  partition->Move(PartitionState::kHome);
  NoteTime(*partition);
  meter_.Add(now_, partition->result_bytes);
  ++operation->home;
  pump_ = true;
  sink_->OnPartHome(operation, partition->part);
  MaybeLeave(operation);
}

// Names the server that holds everybody up.
void ServersStage::NoteTime(const Partition& partition) {
  slow_servers_.Add((partition.peer - 1) / kMaxLanes, now_ - partition.posted_at);
  const std::optional<SlowServers::Finding> slow = slow_servers_.Check(now_);
  if (!slow.has_value()) return;
  BPS_LOG(*log_, kWarning) << DescribePeer(PeerOf({slow->server, 0})) << " is slow: a partition takes "
                           << slow->mean / kMillisecond << " ms from its push to its result, with the other servers "
                           << slow->others / kMillisecond
                           << " ms; every tensor waits for it. Look at its network link and its CPU";
}

// The partition is over without a result.
void ServersStage::Lost(Partition* partition) {
  EndTask(partition, BPS_ABORTED);
  FindPeer(partition->peer)->carrier->EndExposure(partition);
  partition->Move(PartitionState::kFailed);
}

// An operation leaves when all is home or given up, and nothing uses its memory.
void ServersStage::MaybeLeave(Operation* operation) {
  if (operation->writes != 0) return;
  if (operation->failure.ok() ? operation->home == operation->carried : operation->exposed == 0) {
    Leave(operation);
  }
}

void ServersStage::Leave(Operation* operation) {
  const absl::Status outcome = operation->failure;
  if (outcome.ok() && operation->exposed == 0) {
    for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->Keep(operation);
  }
  Drop(operation);
  sink_->OnStageDone(operation, outcome);
}

void ServersStage::Drop(Operation* operation) {
  operation->memory.clear();
  operations_.erase(operation->id);
  std::erase(releasing_, operation);
}

void ServersStage::Stop() {
  if (stopped_) return;
  stopped_ = true;
  for (auto& [id, operation] : operations_) operation->memory.clear();
  for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->Stop();
  writes_.clear();
  queued_ = held_ = 0;
}

void ServersStage::DropFreedBuffers() {
  if (stopped_) return;
  for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->DropFreedBuffers();
}

// ---- Progress ----

bool ServersStage::Run(Time now) {
  if (stopped_) return false;
  now_ = now;
  // A scheduler may have something by time alone, and what was held back may go.
  if (queued_ > 0 && !pump_ && (scheduler_.WakeAt(now) <= now || now >= held_back_until_)) pump_ = true;
  bool worked = Pump();
  for (const std::unique_ptr<Carrier>& carrier : carriers_) worked |= carrier->endpoint().Poll(now);
  worked |= SettleOutboxes();
  if (Pump()) {
    // What has just become possible leaves at once.
    for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->endpoint().Poll(now);
    SettleOutboxes();
    worked = true;
  }
  for (size_t i = 0; i < releasing_.size();) {
    Operation* operation = releasing_[i];
    // Without the registration no server can reach the output any more. (Writes of ours end by themselves.)
    if (now >= operation->release_at && operation->exposed != 0) {
      for (const std::unique_ptr<Carrier>& carrier : carriers_) carrier->TakeAway(operation);
      for (Partition& partition : operation->partitions) {
        if (partition.away()) Lost(&partition);
      }
      operation->release_at = kNever;
    }
    MaybeLeave(operation);
    if (i < releasing_.size() && releasing_[i] == operation) ++i;
  }
  return worked;
}

Time ServersStage::NextTimer() const {
  if (stopped_) return kNever;
  if (pump_ && (queued_ > 0 || held_ > 0)) return now_;
  Time next = kNever;
  for (const std::unique_ptr<Carrier>& carrier : carriers_) next = std::min(next, carrier->endpoint().NextTimer());
  if (queued_ > 0) next = std::min({next, scheduler_.WakeAt(now_), held_back_until_});
  for (const Operation* operation : releasing_) next = std::min(next, operation->release_at);
  return next;
}

void ServersStage::AddEndpoints(std::vector<Endpoint*>* all) {
  if (stopped_) return;
  for (const std::unique_ptr<Carrier>& carrier : carriers_) all->push_back(&carrier->endpoint());
}

std::string ServersStage::WhoIsMissing(const Operation& operation) const {
  std::vector<PeerId> seen;
  std::string text;
  for (const Partition& partition : operation.partitions) {
    const bool waits = partition.state() != PartitionState::kHome && partition.state() != PartitionState::kIdle;
    if (!waits || std::count(seen.begin(), seen.end(), partition.peer) != 0) continue;
    seen.push_back(partition.peer);
    absl::StrAppend(&text, text.empty() ? "no answer from " : "; ", DescribePeer(partition.peer), ": part ",
                    partition.part, " is ", PartitionStateName(partition.state()));
    if (partition.state() == PartitionState::kQueued) {
      absl::StrAppend(&text, ": scheduler \"", scheduler_.name(), "\" has not given it out");
    }
  }
  return text;
}

}  // namespace byteps
