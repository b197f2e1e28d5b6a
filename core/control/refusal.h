// refusal.h - a member that cannot take part says so to the coordinator: otherwise all others would wait for it.
//
//     options.client.hello.set_named_transport("verbs");
//     return TellRefusal(std::move(options), why, log, stop->fd());      // blocks, half a minute at most
//
// The coordinator refuses it, and tells all that wait which process it has refused, and why. A coordinator that is not
// there yet is waited for, but no longer than the start may take, nor than half a minute: a member that
// cannot take part ends soon. Its error the log has at once, if the coordinator is not there.
//
// Threads: any; blocks.
#ifndef BYTEPS_CORE_CONTROL_REFUSAL_H_
#define BYTEPS_CORE_CONTROL_REFUSAL_H_

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/control/control_link.h"

namespace byteps {

// `options` as for a member that takes part, but for its lanes. Returns the words that all others hear, which contain
// `why`, or else just that. `stop`: a descriptor that ends the wait when it can be read; -1: none.
absl::Status TellRefusal(ControlLinkOptions options, const absl::Status& why, const Logger& log, int stop = -1);

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_REFUSAL_H_
