// refusal.h - a member that cannot take part says so to the coordinator: otherwise all others would wait for it.
//
//     options.client.hello.set_named_transport("verbs");
//     return TellRefusal(std::move(options), why);            // blocks for some seconds at most
//
// The coordinator refuses it, and tells everybody who waits whom it has refused, and why. A coordinator that cannot be
// reached, or is not there yet, is tried for a short time only: whoever has started this member wants to see its error.
//
// Threads: any; blocks.
#ifndef BYTEPS_CORE_REFUSAL_H_
#define BYTEPS_CORE_REFUSAL_H_

#include "absl/status/status.h"
#include "core/control_link.h"

namespace byteps {

// `options` as for a member that takes part, but for its lanes. Returns the words that all others hear, which contain
// `why`, or else just that.
absl::Status TellRefusal(ControlLinkOptions options, const absl::Status& why);

}  // namespace byteps

#endif  // BYTEPS_CORE_REFUSAL_H_
