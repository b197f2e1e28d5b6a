#include "core/worker/collectives/peer_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/worker/collectives/peer_records.h"

namespace byteps {
namespace {

// READY records are kept well below the smallest message.
constexpr size_t kMostEntries = 256;

// True in *shown: others write here.
absl::Status Register(PeerRound* round, PeerLinks* links, bool* shown) {
  const ExchangePlan& plan = round->plan();
  bool output = false, scratch = false, input = false;
  for (const PlanStep& step : plan.steps) {
    if (step.bytes <= wire::kPeerInline) continue;
    if (step.kind == PlanStep::Kind::kReceive) {
      output |= step.to.buffer == PlanBuffer::kOutput;
      scratch |= step.to.buffer == PlanBuffer::kScratch;
    } else if (step.kind == PlanStep::Kind::kSend && links->needs_local_regions()) {
      output |= step.from.buffer == PlanBuffer::kOutput;
      scratch |= step.from.buffer == PlanBuffer::kScratch;
      input |= step.from.buffer == PlanBuffer::kInput;
    }
  }
  const auto reg = [&](bool wanted, PlanBuffer buffer, uint64_t bytes, Region* region) -> absl::Status {
    if (!wanted) return absl::OkStatus();
    absl::StatusOr<Region> made = links->Register(round->Address({buffer, 0}), bytes);
    if (!made.ok()) return made.status();
    *region = *std::move(made);
    return absl::OkStatus();
  };
  absl::Status status = reg(output, PlanBuffer::kOutput, plan.output_bytes, &round->output_region);
  if (status.ok()) status = reg(scratch, PlanBuffer::kScratch, plan.scratch_bytes, &round->scratch_region);
  if (status.ok()) status = reg(input, PlanBuffer::kInput, round->asked().bytes(), &round->input_region);
  *shown = output || scratch;
  return status;
}

absl::Status ShowTo(PeerRound* round, PeerLinks* links, size_t place) {
  const auto rank = static_cast<uint32_t>(round->ranks()[place]);
  std::vector<wire::ReadyEntry> entries;
  for (uint32_t transfer = 0;; ++transfer) {
    const std::optional<uint32_t> step = round->ReceiveOf(place, transfer);
    if (!step) break;
    const PlanStep& receive = round->plan().steps[*step];
    if (receive.bytes <= wire::kPeerInline) continue;
    wire::ReadyEntry& entry = entries.emplace_back();
    entry.offset = receive.to.offset;
    entry.transfer = transfer;
    entry.scratch = receive.to.buffer == PlanBuffer::kScratch ? 1 : 0;
    entry.immediate = links->ClaimImmediate(round->UserOf(*step));
    round->immediates.push_back(entry.immediate);
  }
  if (entries.empty()) return absl::OkStatus();
  std::vector<std::byte> keys(2 * links->key_size());
  auto* bytes = reinterpret_cast<uint8_t*>(keys.data());
  for (const Region* region : {&round->output_region, &round->scratch_region}) {
    if (*region) {
      const int32_t code = links->ExportKey(*region, rank, bytes);
      // The transport has lost it, and says next why: that is what everything is to end with.
      if (code == BPS_UNAVAILABLE) return absl::OkStatus();
      if (code != BPS_OK) return MakeStatus(code, "memory cannot be shown to " + links->description(rank));
    }
    bytes += links->key_size();
  }
  round->report(static_cast<int32_t>(rank)).was_shown = true;
  for (size_t at = 0; at < entries.size(); at += kMostEntries) {
    const size_t count = std::min(kMostEntries, entries.size() - at);
    const wire::ReadyBody body{round->id(), round->number(), links->key_size(), static_cast<uint32_t>(count)};
    std::vector<std::byte> fixed(BytesOf(body).begin(), BytesOf(body).end());
    fixed.insert(fixed.end(), keys.begin(), keys.end());
    links->Send(rank, wire::RecordType::kReady, fixed,
                std::as_bytes(std::span<const wire::ReadyEntry>(&entries[at], count)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ShowMemory(PeerRound* round, PeerLinks* links) {
  bool shown = false;
  absl::Status status = Register(round, links, &shown);
  for (size_t place = 0; status.ok() && shown && place < round->ranks().size(); ++place) {
    if (place != round->place()) status = ShowTo(round, links, place);
  }
  return status;
}

}  // namespace byteps
