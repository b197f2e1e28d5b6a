#include "core/neighbours.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/message.h"
#include "core/status.h"

namespace byteps {
namespace {

// The system may yet permit what it refuses at first (Yama: the other side lets us in when it hears of it).
constexpr Time kProbePatience = 500 * kMillisecond;
constexpr Time kProbeInterval = kMillisecond;

std::string DescribeMember(const control::Member& member) {
  return absl::StrCat("rank ", member.rank(), " (worker, host ", member.host().name(), ", ", member.host().address(),
                      ", pid ", member.pid(), ")");
}

}  // namespace

Neighbours::Neighbours(Endpoint* endpoint, Logger* log) : endpoint_(endpoint), log_(log) {}

absl::Status Neighbours::Join(Time now, const control::Epoch& epoch, const control::Member& self, uint32_t first,
                              uint32_t size) {
  own_ = static_cast<uint32_t>(self.rank()) - first;
  for (uint32_t index = 0; index < size; ++index) {
    const control::Member& worker = epoch.workers(static_cast<int>(first + index));
    Member& member = members_.emplace_back();
    member.rank = static_cast<uint32_t>(worker.rank());
    member.member = worker.member();
    member.description = DescribeMember(worker);
    if (index == own_) {
      member.ready = member.reached = true;
      ++reached_;
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
  probe_value_ = self.member();
  absl::StatusOr<Region> region = Region::Make(&endpoint_->transport(), &probe_value_, sizeof probe_value_);
  if (!region.ok()) return region.status();
  probe_region_ = *std::move(region);
  return absl::OkStatus();
}

std::optional<size_t> Neighbours::Find(int64_t rank) const {
  if (members_.empty() || rank < members_.front().rank || rank > members_.back().rank) return std::nullopt;
  return static_cast<size_t>(rank - members_.front().rank);
}

absl::Status Neighbours::OnReady(size_t index) {
  Member& member = members_[index];
  if (member.ready) return absl::OkStatus();
  member.ready = true;
  wire::ProbeBody probe{};
  probe.value = probe_value_;
  probe.key_size = endpoint_->caps().key_size;
  const int32_t code = endpoint_->transport().ExportKey(probe_region_.get(), PeerOf(index), probe.key);
  if (code != BPS_OK) return MakeStatus(code, "no memory can be shown to " + member.description);
  endpoint_->Send(PeerOf(index), wire::RecordType::kProbe, BytesOf(probe));
  return absl::OkStatus();
}

bool Neighbours::OnProbe(Time now, size_t index, std::span<const std::byte> body) {
  wire::ProbeBody probe;
  if (!ReadStruct(body, &probe) || probe.key_size > wire::kMaxKey || members_[index].probe) return false;
  members_[index].probe = probe;
  members_[index].probe_until = After(now, kProbePatience);
  ++probes_;
  return true;
}

bool Neighbours::Answer(Time now) {
  bool worked = false;
  for (size_t index = 0; probes_ != 0 && index < members_.size(); ++index) {
    Member& member = members_[index];
    if (!member.probe) continue;
    uint64_t value = 0;
    const bps_remote remote{member.probe->key, member.probe->key_size, 0};
    const int32_t code = endpoint_->transport().CopyFrom(PeerOf(index), remote, &value, sizeof value);
    const bool reached = code == BPS_OK && value == member.probe->value;
    if (!reached && now < member.probe_until) continue;
    if (!reached) {
      BPS_LOG(*log_, kInfo) << "the memory of " << member.description
                            << " cannot be read here: its tensors are copied into shared memory";
    }
    endpoint_->Send(PeerOf(index), wire::RecordType::kReach, BytesOf(wire::ReachBody{reached ? 1u : 0u, 0}));
    member.probe.reset();
    --probes_;
    worked = true;
  }
  return worked;
}

Time Neighbours::NextTimer(Time now) const { return probes_ == 0 ? kNever : now + kProbeInterval; }

bool Neighbours::OnReach(size_t index, std::span<const std::byte> body) {
  wire::ReachBody reach;
  Member& member = members_[index];
  if (!ReadStruct(body, &reach) || member.reached) return false;
  member.reached = true;
  ++reached_;
  staged_ |= reach.reached == 0;
  return true;
}

std::string Neighbours::Missing() const {
  std::string text;
  for (const Member& member : members_) {
    if (!member.reached) absl::StrAppend(&text, text.empty() ? "" : ", ", member.description);
  }
  return text;
}

void Neighbours::Lose(size_t index, const absl::Status& why) {
  if (members_[index].lost.ok()) members_[index].lost = why;
}

std::optional<size_t> Neighbours::FirstLost() const {
  const auto lost = std::find_if(members_.begin(), members_.end(), [](const Member& each) { return !each.lost.ok(); });
  if (lost == members_.end()) return std::nullopt;
  return static_cast<size_t>(lost - members_.begin());
}

std::string Neighbours::Describe() const {
  std::string text;
  for (const Member& member : members_) {
    absl::StrAppend(&text, member.description, member.reached ? "" : ": not connected", "\n");
  }
  return text;
}

}  // namespace byteps
