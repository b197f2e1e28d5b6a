// timeline_record.h - one thing that happened to an operation, as the timeline takes it down.
//
// Threads: a value.
#ifndef BYTEPS_CORE_WORKER_TIMELINE_TIMELINE_RECORD_H_
#define BYTEPS_CORE_WORKER_TIMELINE_TIMELINE_RECORD_H_

#include <cstdint>
#include <string>

#include "core/base/time.h"

namespace byteps {

enum class TimelineEvent : uint8_t {
  // Of an operation, in this order; each may be missing.
  kSubmitted,  // by its caller: `name`, `label`, `bytes`, `number` (its round), `priority`
  kBegun,      // its cut is known, and the stages have it: `number` (of parts)
  kGathering,  // the local stage: waits for the workers of this host,
  kWorking,    // folds,
  kFinishing,  // waits for the others to end
  // Of a part on its way to a server, between kBegun and kEnded.
  kQueued,  // the scheduler has it: `bytes`, `number` (of the server)
  kPosted,  // handed to the transport
  kPushed,  // its bytes have left
  kHome,    // the answer is where it was wanted
  kFailed,  // given up
  kEnded,   // the operation: `number` (its outcome, BPS_OK, ...)
  // What the program says of itself; `operation` is the number of its thread.
  kMoment,     // `name`
  kSpanBegin,  // `name`; nullptr: it is not shown, and neither is its end
  kSpanEnd,
  // Of the whole process.
  kStep,  // the first operation goes into a round: `number`
};

struct TimelineRecord {
  TimelineEvent event = TimelineEvent::kMoment;
  uint32_t part = 0;
  uint64_t operation = 0;  // unique among those in flight
  Time at = 0;
  // These outlive the timeline.
  const std::string* name = nullptr;
  const char* label = nullptr;  // "push_pull"
  uint64_t bytes = 0;
  uint64_t number = 0;
  int64_t priority = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TIMELINE_TIMELINE_RECORD_H_
