// push_sender.h - puts a partition on its way to its server: in the PUSH record, in a slot of the server's, or in
// place.
//
//     PushSender sender(&lanes, checksum);
//     sender.Join(inline_bytes, own_rank);
//     switch (sender.Post(now, rate, &partition, &error)) ...
//     sender.OnWritten(carrier, user)                  // a write has ended: whose
//     sender.Cancel(tensor, round, fingerprint, part, why)
//
// Threads: none; driven by the thread that drives the servers stage.
// Ownership: the lanes outlive it.
#ifndef BYTEPS_CORE_WORKER_SERVERS_PUSH_SENDER_H_
#define BYTEPS_CORE_WORKER_SERVERS_PUSH_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/wire/wire.h"
#include "core/worker/servers/carrier.h"
#include "core/worker/servers/partition.h"
#include "core/worker/servers/server_lanes.h"

namespace byteps {

class PushSender {
 public:
  // `checksum`: payloads that travel carry one.
  PushSender(ServerLanes* lanes, bool checksum) : lanes_(lanes), checksum_(checksum) {}

  // `inline_bytes`: payloads up to here travel inside the record.
  void Join(uint64_t inline_bytes, uint32_t own_rank) {
    inline_bytes_ = inline_bytes;
    own_rank_ = own_rank;
  }

  enum class Outcome { kPosted, kLater, kFailed };
  // Hands a queued or held partition to its transport. `rate`: what the scheduler has found the link to carry. kLater:
  // the transport takes nothing just now; kFailed: never, as `error` says.
  Outcome Post(Time now, uint64_t rate, Partition* partition, absl::Status* error);

  // The partition whose write had this user value, and which may use its memory again; nullptr: none.
  Partition* OnWritten(Carrier* carrier, uint64_t user);

  // Tells the server of a part that its round is given up.
  void Cancel(const Tensor& tensor, uint64_t round, uint64_t fingerprint, uint32_t part, const absl::Status& why);

  // After the carriers have stopped: no write is under way.
  void Stop() { writes_.clear(); }

 private:
  // A write that has not ended.
  struct Write {
    Partition* partition;
    SendBuffer buffer;
  };

  wire::DataHeader HeaderOf(Time now, uint64_t rate, const Partition& partition) const;
  static void AddChecksum(std::span<const std::byte> payload, wire::DataHeader* header);
  Outcome PostInSlot(Partition* partition, ServerLane* lane, wire::DataHeader* header, absl::Status* error);
  Outcome PostInPlace(Partition* partition, ServerLane* lane, wire::DataHeader* header, absl::Status* error);
  void PostInline(Partition* partition, ServerLane* lane, wire::DataHeader* header);
  static void SendPush(ServerLane* lane, const Partition& partition, const wire::DataHeader& header,
                       std::span<const std::byte> payload);

  ServerLanes* const lanes_;
  const bool checksum_;
  uint64_t inline_bytes_ = 0;
  uint32_t own_rank_ = 0;
  absl::flat_hash_map<uint64_t, Write> writes_;  // by user, which is the partition's task
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_PUSH_SENDER_H_
