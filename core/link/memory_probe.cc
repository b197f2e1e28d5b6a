#include "core/link/memory_probe.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

constexpr Time kPatience = 500 * kMillisecond;
constexpr Time kInterval = kMillisecond;

}  // namespace

MemoryProbe::MemoryProbe(Endpoint* endpoint, std::string instead, Logger* log)
    : endpoint_(endpoint), instead_(std::move(instead)), log_(log) {}

absl::Status MemoryProbe::Open(uint64_t value) {
  value_ = value;
  absl::StatusOr<Region> region = Region::Make(&endpoint_->transport(), &value_, sizeof value_);
  if (!region.ok()) return region.status();
  region_ = *std::move(region);
  return absl::OkStatus();
}

absl::Status MemoryProbe::Ask(PeerId peer, const std::string& who) {
  wire::ProbeBody body{};
  body.value = value_;
  body.key_size = endpoint_->caps().key_size;
  const int32_t code = endpoint_->transport().ExportKey(region_.get(), peer, body.key);
  if (code != BPS_OK) return MakeStatus(code, "no memory can be shown to " + who);
  endpoint_->Send(peer, wire::RecordType::kProbe, BytesOf(body));
  return absl::OkStatus();
}

std::optional<bool> MemoryProbe::ReadReach(std::span<const std::byte> body) {
  wire::ReachBody reach;
  if (!ReadStruct(body, &reach)) return std::nullopt;
  return reach.reached != 0;
}

bool MemoryProbe::OnProbe(Time now, PeerId peer, std::string who, std::span<const std::byte> body) {
  Question question{peer, std::move(who), {}, After(now, kPatience)};
  const bool waits =
      std::any_of(questions_.begin(), questions_.end(), [&](const Question& other) { return other.peer == peer; });
  if (!ReadStruct(body, &question.body) || question.body.key_size > wire::kMaxKey || waits) return false;
  questions_.push_back(std::move(question));
  return true;
}

bool MemoryProbe::Try(const Question& question) {
  uint64_t value = 0;
  const bps_remote remote{question.body.key, question.body.key_size, 0};
  return endpoint_->transport().CopyFrom(question.peer, remote, &value, sizeof value) == BPS_OK &&
         value == question.body.value &&
         endpoint_->transport().CopyTo(question.peer, remote, &value, sizeof value) == BPS_OK;
}

bool MemoryProbe::Answer(Time now) {
  bool worked = false;
  for (size_t i = 0; i < questions_.size();) {
    const Question& question = questions_[i];
    const bool reached = Try(question);
    if (!reached && now < question.until) {
      ++i;
      continue;
    }
    if (!reached) {
      BPS_LOG(*log_, kInfo) << "the memory of " << question.who << " cannot be read here: its tensors " << instead_;
    }
    endpoint_->Send(question.peer, wire::RecordType::kReach, BytesOf(wire::ReachBody{reached ? 1u : 0u, 0}));
    questions_.erase(questions_.begin() + static_cast<ptrdiff_t>(i));
    worked = true;
  }
  return worked;
}

Time MemoryProbe::NextTimer(Time now) const { return questions_.empty() ? kNever : now + kInterval; }

void MemoryProbe::Forget(PeerId peer) {
  std::erase_if(questions_, [&](const Question& question) { return question.peer == peer; });
}

void MemoryProbe::Retract(PeerId peer) {
  endpoint_->Send(peer, wire::RecordType::kReach, BytesOf(wire::ReachBody{0, 0}));
}

}  // namespace byteps
