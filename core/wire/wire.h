// wire.h - the data-plane protocol: what workers and servers put into messages.
//
// A message of the transport is a MessageHeader and then records, back to back, each padded to 8 bytes:
//
//     MessageHeader | RecordHeader body [payload] pad | RecordHeader body [payload] pad | ...
//
// All numbers are little-endian and every struct is laid out without holes, so records are copied, not parsed field by
// field. Nothing read from the wire is trusted: `MessageReader` checks magic, version, sizes and bounds before it hands
// out a record; the consumer of a record checks what it means.
//
// A payload travels in one of three ways (PayloadWay):
//   inline    behind its header, in the message itself: small tensors;
//   landed    by a transport write with an immediate into a slot that the receiver leased to the sender (LEASE), or
//             into the output whose key the PUSH carried. Header and write may arrive in either order; the immediate
//             (slot and generation) ties them together;
//   in place  not at all. PUSH: a MemoryRef behind the header names key and offset from which the server reads or maps
//             it. RESULT: the server has written it to where the PUSH said, before it sent this.
//
// Immediates are chosen by the receiver and unique at its endpoint, so that they need not tell who wrote:
// bits 0..13 are the slot, bits 14..23 its generation (see core/wire/landing_table.h).
#ifndef BYTEPS_CORE_WIRE_WIRE_H_
#define BYTEPS_CORE_WIRE_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace byteps::wire {

// Numbers are copied as they are in memory: a big-endian machine would speak another protocol.
static_assert(std::endian::native == std::endian::little, "the wire format is little-endian, and so must the host be");

inline constexpr uint32_t kMagic = 0x31535042;  // "BPS1"
// Version of this protocol. Members of one job must agree on it; the coordinator compares it when they register.
inline constexpr uint16_t kVersion = 1;

inline constexpr uint32_t kMaxKey = 64;
inline constexpr uint32_t kMaxExtents = 64;  // of a tensor's shape
inline constexpr uint32_t kSlotBits = 14;
inline constexpr uint32_t kGenerationBits = 10;

constexpr uint32_t Immediate(uint32_t slot, uint32_t generation) {
  return slot | (generation & ((1u << kGenerationBits) - 1)) << kSlotBits;
}
constexpr uint32_t ImmediateSlot(uint32_t immediate) { return immediate & ((1u << kSlotBits) - 1); }
constexpr uint32_t ImmediateGeneration(uint32_t immediate) {
  return (immediate >> kSlotBits) & ((1u << kGenerationBits) - 1);
}

struct MessageHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t records;
  uint64_t session;  // session instance of the job (coordinator-assigned; job, name and generation in one number)
  uint32_t epoch;
  uint32_t credits;  // messages of the receiver that the sender has released since its last message
};
static_assert(sizeof(MessageHeader) == 24);

enum class RecordType : uint16_t {
  kHello = 1,      // HelloBody: first on every link, both ways; repeated until answered
  kPush = 2,       // DataHeader, shape: a contribution, worker to server
  kResult = 3,     // DataHeader: the reduced partition, server to worker
  kError = 4,      // ErrorBody + message: this round has failed
  kCancel = 5,     // RoundBody + reason: the sender gives this round up
  kSendAgain = 6,  // RoundBody: the server dropped the sender's input and wants it again
  kLease = 7,      // LeaseBody: slots the receiver may write
  kReturn = 8,     // ReturnBody: slots of an earlier lease that may be written again
  kRevoke = 9,     // LeaseBody: the lease ends (reserved: no sender yet)
  kHave = 10,      // RoundBody: the sender holds the result (reserved for failover)
  kAllHave = 11,   // RoundBody: every worker holds the result (reserved for failover)
  kPing = 12,      // no body: liveness
  kCredit = 13,    // no body: carries MessageHeader.credits only
  kStalled = 14,   // RoundBody + text: some have submitted this round long ago, and some have not; for the log
  // Among processes of one host:
  kOffer = 32,   // OfferBody: the sender takes part in this round, and shows its memory or gives its input
  kDone = 33,    // RoundBody: the sender's slice is in all outputs; it touches no other memory any more
  kGiveUp = 34,  // RoundBody + reason: this round has failed; the sender touches no other memory any more
  kProbe = 35,   // ProbeBody: can the receiver copy from and to the sender's memory? Workers ask servers, too
  kReach = 36,   // ReachBody: the answer; 0 again later: not any more
  // Among workers, in collectives; bodies in core/worker/collectives/peer_records.h:
  kAnnounce = 48,  // AnnounceBody: what the sender asks in this round, and what is small of its bytes
  kReady = 49,     // ReadyBody: where the receiver may write its transfers
  kData = 50,      // DataBody: a small transfer
  kAbort = 51,     // AbortBody + reason: this round has failed
  // Among workers, in joins; bodies likewise:
  kJoined = 56,     // JoinBody: the sender has no data left
  kSeen = 57,       // JoinBody: the sender has told the receiver, which has joined, of what is in flight or has failed
  kAllJoined = 58,  // JoinBody: all have joined, and who was the last
  kTakePart = 59,   // AnnounceBody, TakePartTail: an operation that the receiver, which has joined, takes part in
  // Among processes of one host, of operations on the memory of GPUs; bodies in core/worker/device/gpu_records.h:
  kGpuOffer = 64,   // GpuOfferBody + reason: the sender takes part, with a GPU or without
  kGpuHome = 65,    // GpuHomeBody: the sender's share of a row has come back from the servers
  kGpuOrder = 66,   // GpuOrderBody + id or reason: what all do next, in this order
  kGpuGiveUp = 67,  // GpuGiveUpBody + reason: the sender gives this round up
};

struct RecordHeader {
  RecordType type;
  uint16_t flags;
  uint32_t size;  // of the whole record, this header and padding included; a multiple of 8
};
static_assert(sizeof(RecordHeader) == 8);

enum class PayloadWay : uint8_t { kNone = 0, kInline = 1, kLanded = 2, kInPlace = 3 };

// What is asked with a PUSH. Asynchronous: is added to the value that the server keeps, which is the result. Other
// values from 64 on are reserved for sparse and peer-to-peer requests.
enum class Operation : uint8_t { kPushPull = 0, kBroadcast = 1, kAsynchronous = 64 };

// Names memory of the header's sender: a transport key and an offset from the start of what it was exported for.
struct MemoryRef {
  uint64_t offset;
  uint32_t immediate;  // to be used for the write that fills it
  uint16_t key_size;   // 0: none
  uint16_t reserved;
  uint8_t key[kMaxKey];
};
static_assert(sizeof(MemoryRef) == 80);

// Of a tensor's key: what all tensors of one name have in common, whatever their shape.
constexpr uint64_t NameId(uint64_t key) { return key >> 16; }

// The one fixed header of a partition.
struct DataHeader {
  uint64_t key;            // of the tensor: name id << 16 | variant (see docs/protocol.md)
  uint64_t fingerprint;    // of what all contributors must ask alike: core/worker/tensor/operation.h
  uint64_t round;          // counts the accepted submissions of this name in this epoch
  uint64_t offset;         // first element of the partition in the tensor
  uint64_t elements;       // of the partition
  uint64_t payload_bytes;  // as sent: differs from elements x size where a codec is named
  uint32_t part;           // index of the partition
  uint32_t parts;          // partitions of the tensor
  uint32_t process_set;    // 0: all workers
  uint32_t rank;           // PUSH: of the sender; RESULT: number of contributors
  uint64_t contributors;   // RESULT: 0: all of the process set, else the id of a recorded set
  uint32_t dtype;          // BPS_FLOAT32, ...: of the elements
  uint32_t wire_dtype;     // of the payload
  int32_t root;            // broadcast: root's rank; otherwise 0
  uint32_t timeout_ms;     // PUSH: how long the sender will wait from now for the round to end
  PayloadWay way;
  Operation operation;
  uint8_t reduction;   // BPS_SUM, ...
  uint8_t codec;       // 0: none
  uint32_t immediate;  // landed: the immediate under which the payload arrives
  uint32_t flags;
  uint32_t checksum;  // of the payload, if kFlagChecksum; else 0
  MemoryRef memory;   // PUSH: where the result may be written, key_size 0: into a leased slot or inline
  uint32_t shape;     // PUSH: 1 + the number of extents (int64_t each) that follow the header, 0: not told
  uint32_t rate;  // bytes per second, 0: not known. PUSH: what the sender's link carries, as its scheduler has found;
                  // RESULT: the least that was told with a PUSH of this round: the same for all
  int64_t priority;  // PUSH: larger is sooner; orders the results of a server that schedules them
};
static_assert(sizeof(DataHeader) == 200);

inline constexpr uint32_t kFlagChecksum = 1u << 0;

struct RoundBody {
  uint64_t key;
  uint64_t fingerprint;
  uint64_t round;
  uint32_t part;
  uint32_t process_set;
  uint32_t rank;  // of the worker it concerns
  int32_t code;   // BPS_* code; CANCEL: why
  uint32_t text;  // bytes of UTF-8 that follow
  uint32_t flags;
};
static_assert(sizeof(RoundBody) == 48);

// In the flags of ERROR: not only this round has failed, the server has given the whole session up. The
// coordinator says why, to all, in the same words.
inline constexpr uint32_t kFlagSessionOver = 1u << 0;

// In the flags of CANCEL: of an asynchronous tensor, whose rounds are each worker's own.
inline constexpr uint32_t kFlagAsynchronous = 1u << 1;

using ErrorBody = RoundBody;

// The shape follows; then, inline: the payload; in place: the keys of input and output, `key_size` bytes each.
struct OfferBody {
  uint64_t key;
  uint64_t fingerprint;
  uint64_t round;
  uint64_t elements;
  uint64_t input_offset;  // from the start of what the key was exported for
  uint64_t output_offset;
  uint32_t rank;
  uint32_t dtype;
  int32_t root;  // broadcast: its rank; otherwise 0
  uint32_t key_size;
  PayloadWay way;
  Operation operation;
  uint8_t reduction;
  uint8_t memory;  // kOfferInput | kOfferOutput: the keys that follow
  uint32_t shape;  // 1 + the number of extents (int64_t each) that follow first, 0: not told
};
static_assert(sizeof(OfferBody) == 72);

struct ProbeBody {
  uint64_t value;  // of the 8 bytes that the key shows
  uint32_t key_size;
  uint32_t reserved;
  uint8_t key[kMaxKey];
};
static_assert(sizeof(ProbeBody) == 80);

struct ReachBody {
  uint32_t reached;  // 1: it could
  uint32_t reserved;
};
static_assert(sizeof(ReachBody) == 8);

inline constexpr uint8_t kOfferInput = 1;   // the input may be read
inline constexpr uint8_t kOfferOutput = 2;  // the output may be written; without it, it is the input
struct LeaseBody {
  uint64_t slot_bytes;
  uint64_t offset;      // of the first slot from the start of the region; slot i is at offset + i x slot_bytes
  uint32_t first_slot;  // number of the first slot in immediates
  uint32_t slots;       // all with generation 0 and free
  uint32_t key_size;
  uint32_t reserved;
  uint8_t key[kMaxKey];
};
static_assert(sizeof(LeaseBody) == 96);

struct ReturnBody {
  uint32_t count;
  uint32_t reserved;
  // then `count` immediates (uint32_t): slot and the generation to be used next
};
static_assert(sizeof(ReturnBody) == 8);

struct HelloBody {
  uint32_t member;     // of the sender
  uint32_t lane;       // of the sender's endpoint within its member
  uint32_t to_member;  // of the receiver
  uint32_t to_lane;
  uint32_t answered;      // 1: the sender has accepted the receiver's HELLO
  uint32_t receive_pool;  // messages the receiver of this HELLO may have unreleased at the sender
  uint64_t nonce;         // of the sender, random
  uint8_t proof[32];      // HMAC-SHA256 by the job's token (see core/base/auth.h); zero without a token
};
static_assert(sizeof(HelloBody) == 64);

static_assert(std::is_trivially_copyable_v<DataHeader> && std::is_standard_layout_v<DataHeader>);

}  // namespace byteps::wire

#endif  // BYTEPS_CORE_WIRE_WIRE_H_
