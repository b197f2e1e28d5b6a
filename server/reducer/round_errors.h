// round_errors.h - why a round fails, in words that name who is to blame: role, rank, host.
//
//     return OverdueError(now, *round, awaited);              // DEADLINE_EXCEEDED: who is missing, or what is
//     return MismatchError(*round, rank, push);               // FAILED_PRECONDITION: what each side has asked
//
// Threads: none.
#ifndef BYTEPS_SERVER_REDUCER_ROUND_ERRORS_H_
#define BYTEPS_SERVER_REDUCER_ROUND_ERRORS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/wire/push_head.h"
#include "server/reducer/part_table.h"
#include "server/reducer/round.h"

namespace byteps {

// Its deadline is over. `awaited`: it stands aside for memory that has not come.
absl::Status OverdueError(Time now, const Round& round, bool awaited);
// This rank's PUSH asks something else than those that have come to the round.
// Who has submitted the round and who has not, for the log of those that have; not yet announced by all.
std::string StallText(Time now, const Round& round);
// Of an asynchronous tensor: its push was added, and its answer waits for these ranks.
std::string AheadText(const Round& round);
absl::Status MismatchError(const Round& round, uint32_t rank, const Push& push);
// The others are at round `past` already: in `current`, the one that gathers, if there is one. `failed`: the last one
// that has, if there is one.
absl::Status PastError(uint64_t number, const Round* current, uint64_t past, const FailedRound* failed);
// `worker`, as it is described, has sent CANCEL, with this code and these words.
absl::Status GivenUpError(const std::string& worker, int32_t code, std::string_view reason);
// It has gone on to a later round.
absl::Status AbandonedError(const std::string& worker, uint64_t later);

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_ROUND_ERRORS_H_
