#include "core/worker/local/neighbours.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

std::string DescribeMember(const control::Member& member) {
  return absl::StrCat("rank ", member.rank(), " (worker, host ", member.host().name(), ", ", member.host().address(),
                      ", pid ", member.pid(), ")");
}

}  // namespace

Neighbours::Neighbours(Endpoint* endpoint, Logger* log)
    : endpoint_(endpoint), probe_(endpoint, "are copied into shared memory", log) {}

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
  return probe_.Open(self.member());
}

std::optional<size_t> Neighbours::Find(int64_t rank) const {
  if (members_.empty() || rank < members_.front().rank || rank > members_.back().rank) return std::nullopt;
  return static_cast<size_t>(rank - members_.front().rank);
}

absl::Status Neighbours::OnReady(size_t index) {
  Member& member = members_[index];
  if (member.ready) return absl::OkStatus();
  member.ready = true;
  const absl::Status asked = probe_.Ask(PeerOf(index), member.description);
  // Lost meanwhile: the transport says next why.
  return absl::IsUnavailable(asked) ? absl::OkStatus() : asked;
}

bool Neighbours::OnProbe(Time now, size_t index, std::span<const std::byte> body) {
  return probe_.OnProbe(now, PeerOf(index), members_[index].description, body);
}

bool Neighbours::OnReach(size_t index, std::span<const std::byte> body) {
  const std::optional<bool> reach = MemoryProbe::ReadReach(body);
  Member& member = members_[index];
  if (!reach || member.reached) return false;
  member.reached = true;
  ++reached_;
  staged_ |= !*reach;
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
