#include "core/link/greeting.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/auth.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

Proof ProofOf(const PeerSpec& spec, const std::string& token, const wire::HelloBody& hello) {
  return DataProof(token, spec.session_nonce, spec.session, spec.epoch, hello.member, hello.lane, hello.to_member,
                   hello.to_lane, hello.nonce);
}

}  // namespace

wire::HelloBody MakeHello(const Link& link, const std::string& token, uint32_t receive_pool) {
  wire::HelloBody hello{};
  hello.member = link.spec.own_member;
  hello.lane = link.spec.own_lane;
  hello.to_member = link.spec.member;
  hello.to_lane = link.spec.lane;
  hello.answered = link.accepted ? 1 : 0;
  hello.receive_pool = receive_pool;
  hello.nonce = link.nonce;
  const Proof proof = ProofOf(link.spec, token, hello);
  std::memcpy(hello.proof, proof.data(), sizeof hello.proof);
  return hello;
}

absl::Status CheckHello(const Link& link, const std::string& token, std::span<const std::byte> body,
                        wire::HelloBody* hello) {
  const PeerSpec& spec = link.spec;
  const auto violation = [&](auto... what) {
    return absl::UnavailableError(absl::StrCat(spec.description, " broke the protocol: ", what...));
  };
  if (!ReadStruct(body, hello)) return violation("HELLO is too short");
  if (hello->member != spec.member || hello->lane != spec.lane || hello->to_member != spec.own_member ||
      hello->to_lane != spec.own_lane) {
    return violation("HELLO from member ", hello->member, " lane ", hello->lane, " to member ", hello->to_member,
                     " lane ", hello->to_lane, "; expected ", spec.member, " ", spec.lane, " to ", spec.own_member, " ",
                     spec.own_lane);
  }
  if (!SameProof(std::span<const uint8_t, kProofBytes>(hello->proof), ProofOf(spec, token, *hello))) {
    return absl::UnauthenticatedError(absl::StrCat(spec.description, " did not prove that it knows this job's token"));
  }
  if (!link.accepted && (hello->receive_pool <= kReservedMessages || hello->receive_pool > kMaxReceivePool)) {
    return violation("HELLO announces a receive pool of ", hello->receive_pool);
  }
  return absl::OkStatus();
}

}  // namespace byteps
