// greeting.h - HELLO: how the two ends of a link prove to each other who they are.
//
//     wire::HelloBody hello = MakeHello(link, token, receive_pool);
//     absl::Status fine = CheckHello(link, token, body, &theirs);
//
// Threads: any; pure functions.
#ifndef BYTEPS_CORE_LINK_GREETING_H_
#define BYTEPS_CORE_LINK_GREETING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/link/link.h"
#include "core/wire/wire.h"

namespace byteps {

// Messages of every receive pool that credits do not cover: two kCredit, two PING (a question and an answer), and the
// HELLOs of the beginning, which come before any credit is known.
inline constexpr uint32_t kReservedMessages = 6;
// The largest pool that makes sense.
inline constexpr uint32_t kMaxReceivePool = 1u << 20;

// Ours, to this peer.
wire::HelloBody MakeHello(const Link& link, const std::string& token, uint32_t receive_pool);

// Is this the peer's, and does it know the token? UNAUTHENTICATED: it does not; UNAVAILABLE: it broke the protocol.
absl::Status CheckHello(const Link& link, const std::string& token, std::span<const std::byte> body,
                        wire::HelloBody* hello);

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_GREETING_H_
