// peer_records.h - what workers say to each other in a collective; records in the messages of core/wire/wire.h.
//
// ANNOUNCE goes to all that take part: what the sender asks, and what is small of its bytes for the receiver.
// With the announcements of all, every rank computes the same plan (exchange_plan.h), or sees the same disagreement.
// READY shows memory for the transfers that are written, DATA carries those that are small. ABORT ends a round without
// a result. A round is the n-th operation of an id (Collective::id) on each rank.
//
// JOINED, SEEN, ALL_JOINED and TAKE_PART are of joins (joins.h).
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_PEER_RECORDS_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_PEER_RECORDS_H_

#include <cstddef>
#include <cstdint>

#include "core/wire/wire.h"

namespace byteps::wire {

// Transfers up to this many bytes travel inside a record. Part of the protocol: both ends go by it.
inline constexpr uint64_t kPeerInline = 4096;

inline constexpr uint32_t kNoCapacity = 1u << 0;  // AnnounceBody.flags: its output is the library's memory
inline constexpr uint32_t kScaled = 1u << 1;      // prescale and postscale are set

// The name, the shape (int64_t each), the splits (int64_t each) and the payload follow.
struct AnnounceBody {
  uint64_t id;
  uint64_t round;
  uint64_t set;
  int32_t rank;
  int32_t kind;
  int32_t reduction;
  uint32_t dtype;
  int32_t root;
  int32_t peer;
  int64_t tag;
  uint64_t capacity;
  double prescale;
  double postscale;
  uint64_t match;  // a number of the caller's; 0: none
  uint32_t group_size;
  uint32_t group_index;
  uint32_t flags;
  uint32_t name;
  uint32_t shape;
  uint32_t splits;
  uint32_t payload;
  uint32_t reserved;
};
static_assert(sizeof(AnnounceBody) == 120);

// The keys of output and scratch follow, `key_size` bytes each (both always), then `count` entries.
struct ReadyBody {
  uint64_t id;
  uint64_t round;
  uint32_t key_size;
  uint32_t count;
};
static_assert(sizeof(ReadyBody) == 24);

struct ReadyEntry {
  uint64_t offset;    // from the start of what the key was exported for
  uint32_t transfer;  // of those from the receiver to the sender of this record
  uint32_t immediate;
  uint32_t scratch;  // 1: the second key
  uint32_t reserved;
};
static_assert(sizeof(ReadyEntry) == 24);

// The payload follows.
struct DataBody {
  uint64_t id;
  uint64_t round;
  uint32_t transfer;
  uint32_t size;
};
static_assert(sizeof(DataBody) == 24);

// The reason follows.
struct AbortBody {
  uint64_t id;
  uint64_t round;
  int32_t rank;
  int32_t code;
  uint32_t text;
  uint32_t answer;  // 1: it is the answer to an ABORT; its sender touches no memory for this round any more
};
static_assert(sizeof(AbortBody) == 32);

struct JoinBody {
  uint64_t number;  // of the join, from 1
  int64_t last;  // ALL_JOINED: the rank that joined last. JOINED: a number above those of all that the sender knew of
};
static_assert(sizeof(JoinBody) == 16);

// A TAKE_PART is an ANNOUNCE whose payload is this; the ranks of the set (int32_t each) and its name follow.
struct TakePartTail {
  int64_t timeout;  // nanoseconds
  uint32_t ranks;
  uint32_t set_name;
  uint32_t through_stages;  // 1: the way of bps_push_pull
  uint32_t reserved;
};
static_assert(sizeof(TakePartTail) == 24);

}  // namespace byteps::wire

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_PEER_RECORDS_H_
