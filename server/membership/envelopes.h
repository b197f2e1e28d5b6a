// envelopes.h - messages of the coordinator to one connection, filled.
//
// Threads: any; free functions.
#ifndef BYTEPS_SERVER_MEMBERSHIP_ENVELOPES_H_
#define BYTEPS_SERVER_MEMBERSHIP_ENVELOPES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "server/membership/job_member.h"

namespace byteps {

// The first message on a connection.
control::Envelope ChallengeEnvelope(const std::string& nonce, bool token_required);

// To a member that is registered; a worker has its session. kNever: not at all.
control::Envelope WelcomeEnvelope(const std::string& proof, const JobMember& member, Time heartbeat, Time peer_timeout);

// `member`: which failed; 0: none in particular. `session_id`: to servers, of which session; 0: of none.
control::Envelope FailureEnvelope(const absl::Status& why, uint32_t member, uint64_t session_id);

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_ENVELOPES_H_
