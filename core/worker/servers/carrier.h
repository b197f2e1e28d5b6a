// carrier.h - one transport of a worker, with the memory it shows the servers and takes its payloads from.
//
//     Carrier carrier("tcp", std::move(transport), options, &sink, log);
//     carrier.endpoint().AddPeer(...);
//     carrier.Source(&partition, &buffer, &error);        // where the transport may read the partition's payload
//     carrier.Expose(&partition, &header.memory, &error); // where the server may write its result
//     carrier.Show(&partition, &source);                  // where the server itself may read it, if InPlace(partition)
//
// How a result reaches the output depends on the transport, of a set on the member that leads to the server. Where
// registering is cheap, the output of the operation is registered and each partition gets an immediate of its own: the
// server writes in place. Elsewhere each server lane is lent a window of slots, and results are copied out of it.
//
// A server that has copied from and to our memory when it was asked to (core/link/memory_probe.h) needs no payloads: it
// is shown the input for the operation, and reads it when it folds. The library's own buffers it can map, where the
// transport leads through memory that both share, also if the system refuses it copies: they are registered once, until
// they are freed. Whether it can is not asked beforehand, since each buffer is mapped by itself (the server may have no
// descriptors left): a server that cannot asks for the contribution by SEND_AGAIN, or writes the result elsewhere, and
// from then on is not expected to.
//
// Threads: none; driven by the thread that drives the engine. Callbacks of the sink run inside Poll.
#ifndef BYTEPS_CORE_WORKER_SERVERS_CARRIER_H_
#define BYTEPS_CORE_WORKER_SERVERS_CARRIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/aligned_memory.h"
#include "core/link/endpoint.h"
#include "core/link/memory_probe.h"
#include "core/wire/landing_table.h"
#include "core/wire/wire.h"
#include "core/worker/memory/bounce_pool.h"
#include "core/worker/memory/buffer_regions.h"
#include "core/worker/memory/device_regions.h"
#include "core/worker/servers/transfer.h"
#include "core/worker/tensor/kept_regions.h"

namespace byteps {

class Carrier;

class CarrierSink {
 public:
  virtual ~CarrierSink() = default;
  virtual void OnReady(Carrier* carrier, PeerId peer) = 0;
  virtual void OnRecord(Carrier* carrier, PeerId peer, wire::RecordType type, std::span<const std::byte> body) = 0;
  // Bytes announced with this cookie are all here.
  virtual void OnLanded(Carrier* carrier, uint32_t immediate, uint64_t cookie) = 0;
  virtual void OnWritten(Carrier* carrier, PeerId peer, uint64_t user, int32_t code) = 0;
  virtual void OnRoom(Carrier* carrier, PeerId peer) = 0;
  virtual void OnPeerDown(Carrier* carrier, PeerId peer, const absl::Status& why) = 0;
};

// A payload on its way out, as the transport can take it.
struct SendBuffer {
  bps_local local{};
  std::optional<uint32_t> bounce;  // block of the bounce pool that holds a copy
};

struct CarrierOptions {
  EndpointOptions endpoint;
  uint32_t window_slots = 0;   // lent to each server lane, where a window is needed
  uint32_t bounce_blocks = 0;  // for payloads that must be copied before they are sent
  bool in_place = false;       // servers that can may read and write tensors where they are
};

class Carrier : private EndpointHandler {
 public:
  // `index`: its place among the engine's transports (and in Transfer::memory).
  Carrier(size_t index, std::string name, Transport transport, CarrierOptions options, CarrierSink* sink, Logger* log);

  const std::string& name() const { return name_; }
  Endpoint& endpoint() { return *endpoint_; }
  LandingTable& landing() { return landing_; }

  // No payload is larger; call it before peers are added.
  void SetSlotBytes(uint64_t bytes);

  // What came of asking for memory.
  enum class Grant { kYes, kLater, kFailed };

  // Where the transport may read the partition's input from. kLater: no block of the bounce pool is free now.
  Grant Source(Partition* partition, SendBuffer* buffer, absl::Status* error);
  // The write from there has ended (or was never posted).
  void EndSource(const SendBuffer& buffer);

  // Does this server write results straight into outputs?
  bool direct(PeerId peer) const;
  // Does the transport that leads to this server read and write the areas where they are, in the memory of a GPU? They
  // are registered then.
  bool TakesDevice(PeerId peer, const Areas& areas);
  // Lets the server write the partition's result into the output. kLater: all immediates are in use, or the server is
  // lost, and OnPeerDown says so next.
  Grant Expose(Partition* partition, wire::MemoryRef* memory, absl::Status* error);
  // Does this server read the partition's input where it is, and write the result where it is wanted?
  bool InPlace(const Partition& partition) const;
  // Whatever memory it lies in?
  bool copies(PeerId peer) const { return copies_.contains(peer); }
  // It was shown in place, and the server could not reach it.
  void NoteRefusal(const Partition& partition);
  // Lets it read the partition's input there, until EndExposure. kLater: the server is lost.
  Grant Show(Partition* partition, wire::MemoryRef* memory, absl::Status* error);
  // Takes all that back: the result has come, or the server has said that it will not.
  void EndExposure(Partition* partition);
  // It has ended well, so its servers owe it nothing: what it has registered may stay so for the tensor's next one.
  void Keep(Transfer* transfer);
  // The fence: no server reaches input or output of this operation any more, nor the buffers they lie in. False: not
  // yet, since another operation on the same allocation of a GPU holds its registration: ask again.
  bool TakeAway(Transfer* transfer);
  void DropFreedBuffers() { buffers_->DropFreed(); }

  // The bytes of a slot that this side lent to `peer`; empty if there is no such slot.
  std::span<const std::byte> WindowSlot(PeerId peer, uint32_t immediate) const;
  // Lends it again.
  void ReturnWindowSlot(PeerId peer, uint32_t immediate);
  PeerId WindowOwner(uint32_t immediate) const;

  // Ends all input and output. Registrations of operations must have been given back.
  void Stop();

 private:
  void OnReady(PeerId peer) override;
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(uint32_t immediate) override;
  void OnWritten(PeerId peer, uint64_t user, int32_t code) override;
  void OnRoom(PeerId peer) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnRemoved(PeerId) override {}

  absl::Status LendWindow(PeerId peer);
  void AskReach(PeerId peer);
  // Names the place to the partition's server.
  Grant Export(const BufferRegions::Place& place, const Partition& partition, bool input, wire::MemoryRef* memory,
               absl::Status* error) const;
  absl::StatusOr<bps_region*> RegionOf(const Partition& partition, bool input);
  // The peer maps the library's buffers, as far as the transport is concerned.
  bool Shares(PeerId peer) const;
  // Of memory of a GPU.
  absl::StatusOr<BufferRegions::Place> DevicePlaceOf(const Partition& partition, bool input);
  // Do both input and output (of those that there are) lie in buffers that can be mapped?
  static bool Mappable(const Partition& partition);
  // What the peer is shown of input or output: of their buffer, if it can map that.
  absl::StatusOr<BufferRegions::Place> PlaceOf(const Partition& partition, bool input);
  Transfer::Memory& MemoryOf(Transfer* transfer) const;
  static bool Aligned(const bps_transport_caps& caps, const void* address);

  struct Window {
    PeerId peer = 0;
    uint32_t first_slot = 0;
    AlignedMemory memory;
    Region region;  // behind memory: unregistered before it is freed
  };

  const size_t index_;
  const std::string name_;
  const CarrierOptions options_;
  CarrierSink* const sink_;
  Logger* const log_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<BufferRegions> buffers_;  // behind the endpoint: regions go before the transport
  std::unique_ptr<KeptRegions> kept_;       // likewise
  std::unique_ptr<DeviceRegions> devices_;  // likewise
  bool device_refused_ = false;             // the log has said why
  uint64_t slot_bytes_ = 0;
  LandingTable landing_;
  std::unique_ptr<BouncePool> bounce_;
  std::unique_ptr<MemoryProbe> probe_;
  absl::flat_hash_set<PeerId> copies_;  // who reaches any memory of ours
  absl::flat_hash_set<PeerId> maps_;    // who reaches our buffers, as far as is known
  std::vector<std::unique_ptr<Window>> windows_;
  std::vector<Window*> window_of_slot_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_CARRIER_H_
