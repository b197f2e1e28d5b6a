// auth.h - which processes may join a job: the token, and the proofs that one knows it.
//
//     absl::StatusOr<std::string> token = JobToken(config.token, config.token_file);
//     absl::Status allowed = CheckUnauthenticated(*token, allow_unauthenticated, own_address);
//     hello.set_proof(MemberProof(*token, challenge.nonce(), hello.nonce(), role, job, session));
//     if (!SameProof(hello.proof(), MemberProof(...))) refuse
//
// A proof is HMAC-SHA256 by the token over a list of fields. Each field goes in with its length, and the first says
// what the proof is for, so that no proof can be taken for another. The token itself never travels. Nonces are random;
// the side that checks a proof has chosen one of the nonces in it, so that a recorded proof is worth nothing later.
//
// Without a token proofs are 32 zero bytes: every process can make them, and CheckUnauthenticated says where that is
// good enough.
//
// Threads: free functions, callable on any thread.
#ifndef BYTEPS_CORE_BASE_AUTH_H_
#define BYTEPS_CORE_BASE_AUTH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace byteps {

inline constexpr size_t kNonceBytes = 16;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kMaxTokenBytes = 4096;

using Proof = std::array<uint8_t, kProofBytes>;

// Bytes from the system's random number generator.
std::string RandomBytes(size_t size);
std::string RandomNonce();
uint64_t RandomNumber();

// The job's token: `token` itself, else what the file `token_file` holds (white space around it does not belong to
// it). Both empty: "", no token. INVALID_ARGUMENT: both are given, the file is empty or the token too long; NOT_FOUND:
// the file cannot be read.
absl::StatusOr<std::string> JobToken(std::string_view token, std::string_view token_file);

// OK if a job with this token may be served at (or reached through) `address`, numeric: any address with a token,
// loopback without one. UNAUTHENTICATED names the address and both ways out.
absl::Status CheckUnauthenticated(std::string_view token, bool allow_unauthenticated, std::string_view address);

// Is this numeric address, IPv4 or IPv6, one of the loopback interface?
bool IsLoopback(std::string_view address);

// Control plane: of the member, in Hello. `role` as in control.proto.
std::string MemberProof(std::string_view token, std::string_view challenge_nonce, std::string_view member_nonce,
                        int32_t role, std::string_view job, std::string_view session);
// Control plane: of the coordinator, in Welcome.
std::string CoordinatorProof(std::string_view token, std::string_view challenge_nonce, std::string_view member_nonce);
// Data plane: in HELLO. `session_nonce` is Epoch.nonce, `nonce` the number in the same HELLO.
Proof DataProof(std::string_view token, std::string_view session_nonce, uint64_t session, uint32_t epoch,
                uint32_t from_member, uint32_t from_lane, uint32_t to_member, uint32_t to_lane, uint64_t nonce);

// Are both proofs whole and the same? Takes as long whatever is in them.
bool SameProof(std::string_view one, std::string_view other);
bool SameProof(std::span<const uint8_t, kProofBytes> one, std::span<const uint8_t, kProofBytes> other);

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_AUTH_H_
