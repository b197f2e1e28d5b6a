// channel.h - the memory of one direction between two endpoints: messages, operations, and the ledger of rights.
//
// The producer of a direction creates its channel and shows it to the consumer, who maps it too:
//
//     descriptors   a ring: what happened, in order (a message is in slot i; operation i wants to be looked at)
//     slots         the messages; given back in any order through the ring `returns`
//     operations    writes and reads of the producer: the consumer carries them out, or answers them
//     staging       a ring of large chunks for payloads that the consumer may not fetch by itself
//     ledger        which memory of the producer the consumer may write directly, and whether it is doing so now
//
// Memory ordering. Each ring has one writer of its head and one of its tail; a head is published with release and read
// with acquire. Who publishes something and then looks whether the other side sleeps, and who goes to sleep and then
// looks whether something was published, put a sequentially consistent fence between the two: one of them sees the
// other (see Peer::Wake and Peer::Quiet).
//
// Trust. The other side can write all of this at any time, also between two reads of ours. So what is not atomic is
// read once, whole, by CopyOnce: the copy is checked, and the copy is used. A peer can harm its own traffic, not the
// memory of this process. (The bytes of a message stay where they are while they are on loan: who reads them does so
// likewise.)
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_CHANNEL_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "transport_plugins/shm/shared_memory.h"

namespace byteps::shm {

inline constexpr uint32_t kMaxMessage = 16384;
inline constexpr uint32_t kSlots = 64;         // messages that may be unreleased
inline constexpr uint32_t kOperations = 256;   // that may be outstanding
inline constexpr uint32_t kDescriptors = 512;  // more than slots and operations together: the ring never runs full
inline constexpr uint32_t kLedger = 32768;
inline constexpr uint32_t kStagingChunks = 2;
inline constexpr uint32_t kStagingBytes = 512 * 1024;

// What gives access to a region: opaque to the owner of the transport.
struct Key {
  uint64_t region;   // number of the region at its owner
  uint64_t secret;   // random, for one peer
  uint64_t address;  // in the memory of its owner
  uint64_t size;
  uint32_t entry;  // of the ledger; kNoEntry: none
  uint32_t flags;
};
static_assert(sizeof(Key) == 40);
inline constexpr uint32_t kNoEntry = 0xffffffffu;
inline constexpr uint32_t kKeyShared = 1;  // the region is memory that both can map
inline constexpr uint32_t kKeyLent = 2;    // and outlives its registration: written only by those in the ledger

struct Descriptor {
  enum Kind : uint32_t { kMessage = 1, kOperation = 2 };
  uint32_t kind;
  uint32_t index;
  uint32_t size;  // of a message
  uint32_t reserved;
};

// A write or a read, while it is under way. All but `state` is written by the producer before it is posted.
struct RequestBody {
  uint32_t kind;      // Request::Kind
  uint32_t sequence;  // tells successive uses apart
  uint32_t immediate;
  uint32_t reserved;
  uint64_t address;        // write: of the payload, in the producer's memory
  uint64_t shared_region;  // write: the payload is in this region of the producer, which can be mapped; 0: it is not
  uint64_t shared_offset;
  uint64_t size;
  uint64_t offset;  // in the region that the key names
  Key key;
};
static_assert(sizeof(RequestBody) == 96);

struct Request {
  enum State : uint32_t {
    kFree = 0,       // the producer's to use
    kPosted = 1,     // the consumer's to carry out
    kStaged = 2,     // a write whose payload the consumer wants brought to it
    kCancelled = 3,  // by the producer; the consumer acknowledges with kFailed
    kDone = 4,
    kFailed = 5,
  };
  enum Kind : uint32_t { kWrite = 1, kRead = 2 };
  std::atomic<uint32_t> state;
  std::atomic<int32_t> code;  // of kFailed
  RequestBody body;
  uint64_t unused[3];
};
static_assert(sizeof(Request) == 128);

struct Chunk {
  uint32_t kind;  // Request::kWrite: of the producer's request; kRead: an answer to the consumer's request
  uint32_t index;
  uint32_t sequence;
  uint32_t bytes;
  uint64_t offset;  // of these bytes in the payload
};

struct alignas(64) ChannelHeader {
  // Written by the producer.
  std::atomic<uint32_t> head;    // descriptors
  std::atomic<uint32_t> staged;  // chunks
  std::atomic<uint32_t> closed;  // the ledger is void, whatever is in it
  // Written by the consumer.
  alignas(64) std::atomic<uint32_t> tail;
  std::atomic<uint32_t> returned;   // slots
  std::atomic<uint32_t> fetched;    // chunks
  std::atomic<uint32_t> completed;  // changes when the state of a request does
  std::atomic<uint32_t> mapped;     // the consumer's owner holds pointers into regions of the producer
  // Written by both.
  alignas(64) std::atomic<uint32_t> sleeping;  // the consumer must be woken
  std::atomic<uint32_t> room_wanted;           // the producer waits for slots or requests
};

// Who writes memory directly puts itself down here first. One word, so that taking a right away and using it exclude
// each other: the upper 48 bits are the secret's (0: no right), the lower 16 count those that are writing.
using LedgerEntry = std::atomic<uint64_t>;
inline constexpr uint64_t kLedgerUsers = 0xffff;

struct ChannelMemory {
  ChannelHeader header;
  Descriptor descriptors[kDescriptors];
  uint32_t returns[kSlots];
  alignas(64) Request requests[kOperations];
  Chunk chunks[kStagingChunks];
  alignas(4096) LedgerEntry ledger[kLedger];
  alignas(4096) std::byte slots[kSlots][kMaxMessage];
  alignas(4096) std::byte staging[kStagingChunks][kStagingBytes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::is_trivially_destructible_v<ChannelMemory>);

// What the other side can write, read once: what is checked is what is used.
template <typename T>
T CopyOnce(const T& shared) {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
  std::memcpy(&copy, &shared, sizeof copy);
  // Without this the compiler may read `shared` again where it should use the copy.
  asm volatile("" : : "r"(&copy) : "memory");
  return copy;
}

class Channel {
 public:
  static std::shared_ptr<Channel> Create(std::string* reason);
  static std::shared_ptr<Channel> Adopt(UniqueFd fd, std::string* reason);

  ChannelMemory& memory() const { return *reinterpret_cast<ChannelMemory*>(memory_.base()); }
  int fd() const { return memory_.fd(); }

 private:
  explicit Channel(SharedMemory memory) : memory_(std::move(memory)) {}
  SharedMemory memory_;  // zero is a valid beginning for all of it
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_CHANNEL_H_
