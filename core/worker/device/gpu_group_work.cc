#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/worker/device/gpu_group_stage.h"

namespace byteps {
namespace {

constexpr size_t kMaxText = 1024;

bool IsBroadcast(const Operation& operation) { return operation.asked.kind == wire::Operation::kBroadcast; }

std::span<const std::byte> BytesOfText(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), std::min(text.size(), kMaxText)));
}

std::byte* At(const std::byte* base, uint64_t element, const Tensor& tensor) {
  return const_cast<std::byte*>(base) + element * tensor.element_bytes();
}

}  // namespace

// ---- Of the first member ----

void GpuGroupStage::Send(GpuOrderBody body, const std::string& text) {
  body.text = static_cast<uint32_t>(std::min(text.size(), kMaxText));
  for (size_t index = 1; index < members(); ++index) {
    local_->SendSide(index, wire::RecordType::kGpuOrder, BytesOf(body), BytesOfText(text));
  }
  orders_.push_back({body, text});
}

bool GpuGroupStage::OrderReductions() {
  bool worked = false;
  while (!groups_.empty()) {
    const absl::StatusOr<bool> done = groups_.front().Query();
    if (done.ok() && !*done) break;
    groups_.pop_front();
    worked = true;
  }
  size_t ordered =
      groups_.size() + static_cast<size_t>(std::count_if(orders_.begin(), orders_.end(), [](const Order& order) {
        return order.body.kind == GpuOrderKind::kReduce;
      }));
  while (ordered < kGroupsAhead) {
    const std::pair<const Key, Entry>* best = nullptr;
    for (const auto& each : entries_) {
      if (each.second.way != Way::kGpus || each.second.submitted_orders || each.second.own.giving_up) continue;
      const auto rank = [](const Operation& operation) { return std::pair(operation.asked.priority, -operation.id); };
      if (best == nullptr || rank(*each.second.own.operation) > rank(*best->second.own.operation)) best = &each;
    }
    if (best == nullptr) break;
    Entry& entry = entries_.at(best->first);
    const uint32_t rows = IsBroadcast(*entry.own.operation) ? 1 : RowsOf(*entry.own.operation).size();
    GpuOrderBody body = {};
    body.name = best->first.first;
    body.round = best->first.second;
    body.kind = GpuOrderKind::kReduce;
    body.ring = static_cast<uint32_t>(body.name % options_.rings);
    body.first = entry.next_row;
    body.count = std::min(options_.rows_in_group, rows - entry.next_row);
    entry.next_row += body.count;
    entry.submitted_orders = entry.next_row == rows;
    Send(body);
    ++ordered;
    worked = true;
  }
  return worked;
}

void GpuGroupStage::OnHome(const Key& key, uint32_t row) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.way != Way::kGpus || row >= found->second.away.size()) return;
  if (found->second.away[row] == 0 || --found->second.away[row] != 0) return;
  GpuOrderBody body = {};
  body.name = key.first;
  body.round = key.second;
  body.kind = GpuOrderKind::kGather;
  body.ring = static_cast<uint32_t>(body.name % options_.rings);
  body.first = row;
  body.count = 1;
  Send(body);
}

void GpuGroupStage::OnMemberGivesUp(const Key& key, int32_t code, const std::string& text) {
  Entry* entry = Get(key);
  if (entry == nullptr || entry->way == Way::kEnded) return;
  if (entry->way == Way::kHost) return;  // the stages behind tell
  entry->way = Way::kEnded;
  entry->ended = MakeStatus(code, text);
  GpuOrderBody body = {};
  body.name = key.first;
  body.round = key.second;
  body.kind = GpuOrderKind::kEnd;
  body.code = code;
  Send(body, text);
}

// ---- Working ----

// What NCCL says, and how a job does without it.
absl::Status GpuGroupStage::WithWayOut(const absl::Status& nccl) {
  return Annotate(nccl, "the GPUs of this host cannot work together (BYTEPS_NCCL=0: tensors go through the host)");
}

bool GpuGroupStage::RunOrders() {
  bool worked = false;
  while (!orders_.empty() && !fatal_) {
    const absl::StatusOr<bool> done = Execute(&orders_.front());
    if (!done.ok()) {
      Fatal(done.status(), 0);
      return true;
    }
    if (!*done) break;
    orders_.pop_front();
    worked = true;
  }
  return worked;
}

// False: it waits for something.
absl::StatusOr<bool> GpuGroupStage::Execute(Order* order) {
  const GpuOrderBody& body = order->body;
  const Key key = {body.name, body.round};
  Ring& ring = rings_[body.ring];
  if (body.kind == GpuOrderKind::kJoin) {
    if (gpu_.gpu == nullptr) return absl::InternalError("ordered to join the GPUs of this host, without a GPU");
    absl::StatusOr<std::unique_ptr<GpuComm>> comm = GpuComm::Join(
        gpu_.gpu, order->text, static_cast<int32_t>(local_->neighbours().own()), static_cast<int32_t>(members()), 0);
    if (!comm.ok()) return WithWayOut(comm.status());
    ring.comm = *std::move(comm);
    return true;
  }
  Entry* entry = Get(key);
  if (entry == nullptr) {
    // It is over here. What the others launch of it would meet what this GPU launches next.
    if (body.kind == GpuOrderKind::kReduce || body.kind == GpuOrderKind::kGather) {
      return absl::InternalError("ordered to reduce an operation that this worker has given up long ago");
    }
    return true;
  }
  if (body.kind == GpuOrderKind::kHost) {
    if (entry->own.giving_up) {
      // It was ordered before the first member heard of that, and there the others wait for this one.
      entry->own.end_ordered = true;
      local_->EndRound(now_, key.first, key.second, entry->ended);
      return true;
    }
    entry->way = Way::kHost;
    // Else it waits for the operation.
    const bool mine = entry->own.operation != nullptr || entry->reports[local_->neighbours().own()].offered;
    if (mine || local_->Submitted(key.first, key.second)) ToHost(key, entry);
    return true;
  }
  if (body.kind == GpuOrderKind::kEnd) {
    entry->way = Way::kEnded;
    entry->ended = MakeStatus(body.code == BPS_OK ? BPS_INTERNAL : body.code, order->text);
    entry->own.end_ordered = true;
    if (entry->own.operation != nullptr) {
      GiveUp(key, entry, entry->ended, true, false);
    } else if (local_->Submitted(key.first, key.second)) {
      // It has passed by, as its memory is the host's.
      const absl::Status ended = entry->ended;
      Forget(key);
      local_->EndRound(now_, key.first, key.second, ended);
    }
    return true;
  }
  Own& own = entry->own;
  if (own.operation == nullptr || ring.comm == nullptr) {
    return absl::InternalError("ordered to reduce what was not offered");
  }
  absl::StatusOr<bool> ready = ring.comm->Ready();
  if (!ready.ok()) return WithWayOut(ready.status());
  if (!*ready) return false;
  // An exchange is followed by the fold, and on a host alone by the gathering of the results.
  const bool exchanges = body.kind == GpuOrderKind::kReduce && Exchanges(*own.operation);
  const int units = exchanges && !local_->beyond() ? 2 : 1;
  while (order->units < units) {
    entry->way = Way::kGpus;
    own.launched = true;
    absl::Status launched;
    if (!exchanges) {
      launched = Launch(*order, entry, &ring);
    } else if (order->units == 0) {
      launched = LaunchExchange(order, own, &ring);
    } else {
      launched = FoldShares(*order, own, &ring);
      if (launched.ok()) launched = LaunchGather(body.first, body.count, own, &ring);
    }
    if (!launched.ok()) return launched;
    ++order->units;
    ready = ring.comm->Ready();
    if (!ready.ok() || !*ready) return ready;
  }
  if (exchanges && local_->beyond()) {
    if (absl::Status folded = FoldShares(*order, own, &ring); !folded.ok()) return folded;
  }
  const absl::Status status =
      body.kind == GpuOrderKind::kReduce ? AfterReduce(*order, entry, &ring) : AfterGather(*order, entry, &ring);
  if (!status.ok()) return status;
  return true;
}

absl::Status GpuGroupStage::Launch(const Order& order, Entry* entry, Ring* ring) {
  Own& own = entry->own;
  const Submission& asked = own.operation->asked;
  const Tensor& tensor = *asked.tensor;
  const Cut& cut = *tensor.cut;
  const GpuRows rows = RowsOf(*own.operation);
  const auto self = static_cast<uint32_t>(local_->neighbours().own());
  const uint32_t dtype = tensor.dtype();
  GpuComm& comm = *ring->comm;
  if (order.body.kind == GpuOrderKind::kGather) {
    // What has come home is in the GPU when its copy has ended.
    absl::StatusOr<GpuEvent> home = gpu_.events->Take();
    if (!home.ok()) return home.status();
    if (absl::Status status = home->Record(to_device_); !status.ok()) return status;
    if (absl::Status status = home->Delay(ring->stream); !status.ok()) return status;
    return LaunchGather(order.body.first, order.body.count, own, ring);
  }
  if (absl::Status status = comm.Begin(); !status.ok()) return status;
  absl::Status status;
  const auto all = [&](const absl::Status& each) {
    if (status.ok()) status = each;
  };
  if (IsBroadcast(*own.operation)) {
    const size_t root = local_->neighbours().Find(asked.root).value_or(0);
    all(comm.Broadcast(root == self ? asked.input : asked.output, asked.output, tensor.elements(), dtype,
                       static_cast<int32_t>(root), ring->stream));
  } else if (!local_->beyond()) {
    const uint64_t first = cut.first(rows.first(order.body.first));
    const uint32_t last_part = rows.last(order.body.first + order.body.count - 1) - 1;
    all(comm.AllReduce(At(asked.input, first, tensor), At(asked.output, first, tensor),
                       cut.first(last_part) + cut.count(last_part) - first, dtype, asked.reduction, ring->stream));
  } else {
    const int32_t reduction = asked.reduction == BPS_AVERAGE ? BPS_SUM : asked.reduction;  // the servers divide
    for (uint32_t row = order.body.first; row < order.body.first + order.body.count; ++row) {
      const uint64_t begin = cut.first(rows.first(row)), count = cut.count(rows.first(row));
      if (rows.even(row)) {
        all(comm.ReduceScatter(At(asked.input, begin, tensor), At(asked.output, begin + self * count, tensor), count,
                               dtype, reduction, ring->stream));
        continue;
      }
      for (uint32_t part = rows.first(row); part < rows.last(row); ++part) {
        all(comm.Reduce(At(asked.input, cut.first(part), tensor), At(asked.output, cut.first(part), tensor),
                        cut.count(part), dtype, reduction, static_cast<int32_t>(rows.owner(part)), ring->stream));
      }
    }
  }
  all(comm.End());
  return status;
}

absl::Status GpuGroupStage::LaunchGather(uint32_t first, uint32_t count, const Own& own, Ring* ring) {
  const Submission& asked = own.operation->asked;
  const Tensor& tensor = *asked.tensor;
  const Cut& cut = *tensor.cut;
  const GpuRows rows = RowsOf(*own.operation);
  const auto self = static_cast<uint32_t>(local_->neighbours().own());
  const uint32_t dtype = tensor.dtype();
  GpuComm& comm = *ring->comm;
  absl::Status status = comm.Begin();
  if (!status.ok()) return status;
  const auto all = [&](const absl::Status& each) {
    if (status.ok()) status = each;
  };
  for (uint32_t row = first; row < first + count; ++row) {
    const uint64_t begin = cut.first(rows.first(row)), elements = cut.count(rows.first(row));
    if (rows.even(row)) {
      all(comm.AllGather(At(asked.output, begin + self * elements, tensor), At(asked.output, begin, tensor), elements,
                         dtype, ring->stream));
      continue;
    }
    for (uint32_t part = rows.first(row); part < rows.last(row); ++part) {
      std::byte* const at = At(asked.output, cut.first(part), tensor);
      all(comm.Broadcast(at, at, cut.count(part), dtype, static_cast<int32_t>(rows.owner(part)), ring->stream));
    }
  }
  all(comm.End());
  return status;
}

// The next stage hears of the own parts; they get their place in pinned memory, unless it takes them where they are.
absl::Status GpuGroupStage::BeginBeyond(Entry* entry) {
  Own& own = entry->own;
  const Tensor& tensor = *own.operation->asked.tensor;
  const Cut& cut = *tensor.cut;
  const GpuRows rows = RowsOf(*own.operation);
  const auto self = static_cast<uint32_t>(local_->neighbours().own());
  own.operation->by_gpus = own.operation->known = true;
  own.rows = rows.size();
  own.offsets.assign(cut.parts(), 0);
  uint32_t parts = 0;
  for (uint32_t part = 0; part < cut.parts(); ++part) {
    if (rows.owner(part) != self) continue;
    own.offsets[part] = own.area_bytes;
    own.area_bytes += cut.count(part) * tensor.element_bytes();
    ++parts;
  }
  if (parts == 0 || GoesDirect(&own, {0, parts})) return absl::OkStatus();
  const absl::StatusOr<Area*> made = AreaOf(&own);
  if (!made.ok()) return made.status();
  const Area& area = **made;
  Areas host;
  host.source = own.asked.source;
  host.source.address = area.memory->data();
  host.source.bytes = own.area_bytes;
  host.source.elements = own.area_bytes / tensor.element_bytes();
  host.source.device = Device();
  host.target = host.source;
  host.source_buffer = host.target_buffer = area.memory->buffer();
  own.begun = true;
  own.through = false;
  next()->Begin(now_, own.operation, host, {0, parts});
  return absl::OkStatus();
}

// Its pinned memory, for all own parts; taken with the first operation that needs it.
absl::StatusOr<GpuGroupStage::Area*> GpuGroupStage::AreaOf(Own* own) {
  const Tensor& tensor = *own->operation->asked.tensor;
  Area& area = areas_[&tensor];
  if (!std::exchange(own->has_area, true)) {
    ++area.rounds;
    area.again = area.memory != nullptr;
    area.used_at = now_;
  }
  // Another cut may give this member more.
  const bool kept = area.memory != nullptr && !area.memory->buffer()->exchanged();
  if (kept && area.memory->buffer()->size() >= own->area_bytes) return &area;
  if (area.memory == nullptr) GiveBackIdle();
  absl::StatusOr<std::unique_ptr<PinnedArea>> made = stock_->Take(now_, gpu_.gpu, own->area_bytes, 0);
  if (!made.ok()) return Annotate(made.status(), tensor.Describe());
  if (area.memory != nullptr) {
    // To give pinned memory back waits for all streams, and they may wait for other members.
    Idle(area) ? stock_->GiveBack(now_, std::move(area.memory), 0) : stock_->PutAside(std::move(area.memory));
  }
  area.memory = *std::move(made);
  return &area;
}

bool GpuGroupStage::Idle(const Area& area) {
  if (area.last == nullptr) return true;
  const absl::StatusOr<bool> copied = area.last->finished.Query();
  return copied.ok() && *copied;
}

// What tensors that are named anew for each operation leave behind would grow without end.
void GpuGroupStage::GiveBackIdle() {
  if (now_ < After(looked_at_, PinnedStock::kLookTime)) return;
  looked_at_ = now_;
  const auto once = [](const auto& entry) { return entry.second.memory != nullptr && !entry.second.again; };
  const Time keep = PinnedStock::KeepTime(static_cast<size_t>(std::count_if(areas_.begin(), areas_.end(), once)));
  absl::erase_if(areas_, [&](auto& entry) {
    Area& area = entry.second;
    if (!once(entry) || area.rounds != 0 || now_ < After(area.used_at, keep) || !Idle(area)) return false;
    stock_->GiveBack(now_, std::move(area.memory), 0);
    return true;
  });
}

// What the GPUs have reduced is in the output.
bool GpuGroupStage::GoesDirect(Own* own, PartRange range) {
  if (!gpu_.remote) return false;
  Areas areas;
  areas.source = areas.target = own->asked.target;
  areas.source_allocation = areas.target_allocation = &own->gpu->output.allocation;
  if (!next()->TakesDevice(*own->operation, areas)) return false;
  own->direct = own->begun = true;
  own->through = false;
  next()->Begin(now_, own->operation, areas, range);
  return true;
}

Payload GpuGroupStage::Beyond(const Own& own, uint32_t part) const {
  const Tensor& tensor = *own.operation->asked.tensor;
  if (own.direct) return PartOf(own.asked.target, *tensor.cut, part);
  Payload payload;
  payload.address = areas_.at(&tensor).memory->data() + own.offsets[part];
  payload.elements = tensor.cut->count(part);
  payload.bytes = payload.elements * tensor.element_bytes();
  payload.dtype = tensor.dtype();
  return payload;
}

absl::Status GpuGroupStage::AfterReduce(const Order& order, Entry* entry, Ring* ring) {
  Own& own = entry->own;
  absl::StatusOr<GpuEvent> reduced = gpu_.events->Take();
  if (!reduced.ok()) return reduced.status();
  if (absl::Status status = reduced->Record(ring->stream); !status.ok()) return status;
  const bool all =
      order.body.first + order.body.count == (IsBroadcast(*own.operation) ? 1 : RowsOf(*own.operation).size());
  own.operation->asked.request->Advance(RequestState::kActive);
  if (!local_->beyond()) {
    own.operation->by_gpus = true;
    if (leads()) groups_.push_back(*std::move(reduced));
    return all ? Conclude(entry, ring) : absl::OkStatus();
  }
  const Key key = {order.body.name, order.body.round};
  if (order.body.first == 0 && !own.giving_up) {
    if (const absl::Status status = BeginBeyond(entry); !status.ok()) GiveUp(key, entry, status, false, true);
  }
  if (absl::Status status = reduced->Delay(to_host_); !status.ok()) return status;
  const GpuRows rows = RowsOf(*own.operation);
  const Tensor& tensor = *own.operation->asked.tensor;
  for (uint32_t row = order.body.first; row < order.body.first + order.body.count && own.begun; ++row) {
    for (uint32_t part = rows.first(row); part < rows.last(row); ++part) {
      if (rows.owner(part) != local_->neighbours().own() || own.giving_up) continue;
      absl::StatusOr<GpuEvent> copied = gpu_.events->Take();
      if (!copied.ok()) return copied.status();
      absl::Status status;
      if (!own.direct) {
        const Payload host = Beyond(own, part);
        status = gpu_.gpu->CopyToHost(host.address, At(own.operation->asked.output, tensor.cut->first(part), tensor),
                                      host.bytes, to_host_);
      }
      if (status.ok()) status = copied->Record(to_host_);
      if (!status.ok()) return status;
      ++own.copying;
      copies_.push_back({key, part, *std::move(copied)});
    }
  }
  if (leads()) groups_.push_back(*std::move(reduced));
  return absl::OkStatus();
}

bool GpuGroupStage::TakeCopied() {
  bool worked = false;
  while (!copies_.empty()) {
    const absl::StatusOr<bool> copied = copies_.front().copied.Query();
    if (copied.ok() && !*copied) break;
    worked = true;
    const Copy copy = std::move(copies_.front());
    copies_.pop_front();
    const auto found = entries_.find(copy.key);
    if (found == entries_.end() || found->second.own.copying == 0) continue;
    Own& own = found->second.own;
    --own.copying;
    if (!copied.ok()) {
      GiveUp(copy.key, &found->second, copied.status(), false, true);
    } else if (!own.giving_up) {
      const Payload payload = Beyond(own, copy.part);
      next()->Push(now_, own.operation, copy.part, payload, payload);
    }
  }
  return worked;
}

absl::Status GpuGroupStage::TakeHome(Own* own, uint32_t part, const Payload& result) {
  if (result.device.type == BPS_CUDA) return gpu_.gpu->FlushRemote();
  const std::byte* from = result.address;
  if (own->direct) {  // it came by a way of the host's
    const absl::StatusOr<Area*> area = AreaOf(own);
    if (!area.ok()) return area.status();
    std::byte* const pinned = (*area)->memory->data() + own->offsets[part];
    std::memcpy(pinned, result.address, result.bytes);
    from = pinned;
  }
  const Tensor& tensor = *own->operation->asked.tensor;
  return gpu_.gpu->CopyToDevice(At(own->operation->asked.output, tensor.cut->first(part), tensor), from, result.bytes,
                                to_device_);
}

void GpuGroupStage::OnPartHome(Operation* operation, uint32_t part, const Payload& result) {
  Entry* entry = Find(*operation);
  if (entry == nullptr) return RelayStage::OnPartHome(operation, part, result);
  Own& own = entry->own;
  if (own.giving_up) return;
  const Key key = KeyOf(*operation);
  const absl::Status status = TakeHome(&own, part, result);
  if (!status.ok()) return GiveUp(key, entry, status, false, true);
  const GpuHomeBody body = {key.first, key.second, part / static_cast<uint32_t>(members()), 0};
  if (leads()) return OnHome(key, body.row);
  local_->SendSide(0, wire::RecordType::kGpuHome, BytesOf(body), {});
}

absl::Status GpuGroupStage::AfterGather(const Order& order, Entry* entry, Ring* ring) {
  Own& own = entry->own;
  own.rows -= order.body.count;
  return own.rows == 0 ? Conclude(entry, ring) : absl::OkStatus();
}

// Everything is in the stream; the caller's stream waits for it. If that one cannot (it is being captured, it is no
// stream any more), this operation fails, behind what is under way in its memory; the other ranks have their results.
absl::Status GpuGroupStage::Conclude(Entry* entry, Ring* ring) {
  Own& own = entry->own;
  if (own.giving_up) return absl::OkStatus();
  if (absl::Status status = own.gpu->finished.Record(ring->stream); !status.ok()) return status;
  own.finishing = true;
  if (const auto area = areas_.find(own.operation->asked.tensor); area != areas_.end()) area->second.last = own.gpu;
  if (const absl::Status status = own.gpu->Finish(); !status.ok()) {
    if (absl::IsDataLoss(status)) return status;
    own.outcome = Retryable(Annotate(status, DescribeOperation(*own.operation)));
    return absl::OkStatus();
  }
  sink_->OnEnqueued(own.operation);
  own.operation->asked.request->Advance(RequestState::kEnqueued);
  return absl::OkStatus();
}

}  // namespace byteps
