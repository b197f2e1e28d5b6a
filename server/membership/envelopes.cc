#include "server/membership/envelopes.h"

#include "core/base/status.h"
#include "core/base/version.h"
#include "core/control/control_codec.h"
#include "core/wire/wire.h"
#include "server/membership/job_session.h"

namespace byteps {
namespace {

int64_t Milliseconds(Time time) { return time == kNever ? 0 : time / kMillisecond; }

}  // namespace

control::Envelope ChallengeEnvelope(const std::string& nonce, bool token_required) {
  control::Envelope envelope;
  control::Challenge& challenge = *envelope.mutable_challenge();
  challenge.set_nonce(nonce);
  challenge.set_control_version(kControlVersion);
  challenge.set_wire_version(wire::kVersion);
  challenge.set_release(kRelease);
  challenge.set_token_required(token_required);
  return envelope;
}

control::Envelope WelcomeEnvelope(const std::string& proof, const JobMember& member, Time heartbeat,
                                  Time peer_timeout) {
  control::Envelope envelope;
  control::Welcome& welcome = *envelope.mutable_welcome();
  welcome.set_proof(proof);
  welcome.set_member(member.id);
  if (member.session != nullptr) {
    welcome.set_session_id(member.session->id);
    welcome.set_generation(member.session->generation);
  }
  welcome.set_heartbeat_ms(Milliseconds(heartbeat));
  welcome.set_peer_timeout_ms(Milliseconds(peer_timeout));
  return envelope;
}

control::Envelope FailureEnvelope(const absl::Status& why, uint32_t member, uint64_t session_id) {
  control::Envelope envelope;
  control::Failure& failure = *envelope.mutable_failure();
  failure.set_code(StatusCode(why));
  failure.set_error(std::string(why.message()));
  failure.set_member(member);
  failure.set_session_id(session_id);
  return envelope;
}

}  // namespace byteps
