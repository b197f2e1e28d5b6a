// The deterministic mode: parts are sent to their owners, which fold them in the order of the members.

#include <algorithm>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/worker/device/gpu_group_stage.h"

namespace byteps {
namespace {

std::byte* At(const std::byte* base, uint64_t element, const Tensor& tensor) {
  return const_cast<std::byte*>(base) + element * tensor.element_bytes();
}

}  // namespace

bool GpuGroupStage::Exchanges(const Operation& operation) const {
  return options_.deterministic && operation.asked.kind != wire::Operation::kBroadcast;
}

// Why the owners cannot fold; empty: they can, and there is room for what they receive.
std::string GpuGroupStage::WhyNoFold(const Operation& operation) {
  if (!Exchanges(operation)) return "";
  const Submission& asked = operation.asked;
  const bool later = asked.reduction == BPS_AVERAGE && local_->beyond();  // the servers divide
  const std::vector<const void*> sources(members(), nullptr);
  const absl::Status asks =
      gpu_.gpu->Fold(nullptr, sources, 0, asked.tensor->dtype(), later ? BPS_SUM : asked.reduction, nullptr);
  if (!asks.ok()) return "BYTEPS_DETERMINISTIC=1: " + std::string(asks.message());
  const uint32_t rows = RowsOf(operation).size();
  uint64_t bytes = 0;
  for (uint32_t row = 0; row < rows; row += options_.rows_in_group) {
    bytes = std::max(bytes, ReceivedBytes(operation, row, std::min(options_.rows_in_group, rows - row)));
  }
  const absl::Status room = Reserve(&rings_[KeyOf(operation).first % options_.rings], bytes);
  return room.ok() ? "" : "BYTEPS_DETERMINISTIC=1: " + std::string(room.message());
}

// Of rows [first, first + count): what the other members send to this one.
uint64_t GpuGroupStage::ReceivedBytes(const Operation& operation, uint32_t first, uint32_t count) const {
  const Tensor& tensor = *operation.asked.tensor;
  const GpuRows rows = RowsOf(operation);
  uint64_t elements = 0;
  for (uint32_t part = rows.first(first); part < rows.last(first + count - 1); ++part) {
    if (rows.owner(part) == local_->neighbours().own()) elements += tensor.cut->count(part);
  }
  return elements * tensor.element_bytes() * (members() - 1);
}

absl::Status GpuGroupStage::Reserve(Ring* ring, uint64_t bytes) {
  if (ring->received_bytes >= bytes) return absl::OkStatus();
  absl::StatusOr<void*> made = gpu_.gpu->Allocate(bytes);
  if (!made.ok()) return made.status();
  outgrown_received_.push_back(ring->received);
  ring->received = static_cast<std::byte*>(*made);
  ring->received_bytes = bytes;
  return absl::OkStatus();
}

absl::Status GpuGroupStage::LaunchExchange(Order* order, const Own& own, Ring* ring) {
  const Submission& asked = own.operation->asked;
  const Tensor& tensor = *asked.tensor;
  const Cut& cut = *tensor.cut;
  const GpuRows rows = RowsOf(*own.operation);
  const GpuOrderBody& body = order->body;
  const uint64_t bytes = ReceivedBytes(*own.operation, body.first, body.count);
  // The first member may take more rows at once than this one's BYTEPS_NCCL_GROUP_SIZE.
  if (absl::Status status = Reserve(ring, bytes); !status.ok()) return status;
  GpuComm& comm = *ring->comm;
  absl::Status status = comm.Begin();
  if (!status.ok()) return status;
  const auto all = [&](const absl::Status& each) {
    if (status.ok()) status = each;
  };
  std::byte* to = order->received = ring->received;
  for (uint32_t part = rows.first(body.first); part < rows.last(body.first + body.count - 1); ++part) {
    const uint32_t owner = rows.owner(part);
    const uint64_t count = cut.count(part);
    if (owner != local_->neighbours().own()) {
      all(comm.Send(At(asked.input, cut.first(part), tensor), count, tensor.dtype(), static_cast<int32_t>(owner),
                    ring->stream));
      continue;
    }
    for (size_t member = 0; member < members(); ++member) {
      if (member == owner) continue;
      all(comm.Receive(to, count, tensor.dtype(), static_cast<int32_t>(member), ring->stream));
      to += count * tensor.element_bytes();
    }
  }
  all(comm.End());
  return status;
}

// What LaunchExchange has put into the stream is before this in it.
absl::Status GpuGroupStage::FoldShares(const Order& order, const Own& own, Ring* ring) {
  const Submission& asked = own.operation->asked;
  const Tensor& tensor = *asked.tensor;
  const Cut& cut = *tensor.cut;
  const GpuRows rows = RowsOf(*own.operation);
  const GpuOrderBody& body = order.body;
  const bool later = asked.reduction == BPS_AVERAGE && local_->beyond();
  const std::byte* from = order.received;
  for (uint32_t part = rows.first(body.first); part < rows.last(body.first + body.count - 1); ++part) {
    const uint32_t owner = rows.owner(part);
    if (owner != local_->neighbours().own()) continue;
    std::vector<const void*> sources;
    for (size_t member = 0; member < members(); ++member) {
      if (member == owner) {
        sources.push_back(At(asked.input, cut.first(part), tensor));
        continue;
      }
      sources.push_back(from);
      from += cut.count(part) * tensor.element_bytes();
    }
    absl::Status status = gpu_.gpu->Fold(At(asked.output, cut.first(part), tensor), sources, cut.count(part),
                                         tensor.dtype(), later ? BPS_SUM : asked.reduction, ring->stream);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace byteps
