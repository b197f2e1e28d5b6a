// The functions of abi/transport.h, each handed on to its Endpoint.

#include <cstring>

#include "abi/byteps.h"
#include "transport_plugins/sim/endpoint.h"

namespace byteps::sim {
namespace {

Endpoint& Self(bps_transport* transport) { return *reinterpret_cast<Endpoint*>(transport); }

bool Announced(bps_transport* transport, uint32_t flag) {
  bps_transport_caps caps{};
  caps.struct_size = sizeof caps;
  Self(transport).Caps(&caps);
  return (caps.flags & flag) != 0;
}

// An endpoint needs a fabric to live in, and there is no global one: SimFabric::Open makes endpoints.
int32_t Open(const bps_transport_open_args*, bps_transport**, bps_failure*) { return BPS_UNIMPLEMENTED; }

void Close(bps_transport* transport) { Self(transport).Close(); }

void Caps(bps_transport* transport, bps_transport_caps* caps) { Self(transport).Caps(caps); }

int32_t Address(bps_transport* transport, void* out, size_t* size, bps_failure*) {
  return Self(transport).Address(out, size);
}

int32_t Connect(bps_transport* transport, const bps_connect_args* args, bps_failure*) {
  return Self(transport).Connect(*args);
}

int32_t Disconnect(bps_transport* transport, bps_peer peer) { return Self(transport).Disconnect(peer); }

int32_t Reg(bps_transport* transport, void* base, size_t size, bps_region** region, bps_failure*) {
  return Self(transport).Register(base, size, region);
}

void Unreg(bps_transport* transport, bps_region* region) { Self(transport).Unregister(region); }

int32_t ExportKey(bps_transport* transport, bps_region* region, bps_peer peer, void* key) {
  return Self(transport).ExportKey(region, peer, key);
}

int32_t PostSend(bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user) {
  return Self(transport).PostSend(peer, data, size, user);
}

int32_t PostWrite(bps_transport* transport, bps_peer peer, const bps_local* from, size_t size, const bps_remote* to,
                  uint32_t immediate, uint64_t user) {
  return Self(transport).PostTransfer(BPS_EVENT_WRITTEN, peer, from, size, to, immediate, user);
}

int32_t PostSendAndWrite(bps_transport* transport, bps_peer peer, const void* message, size_t message_size,
                         const bps_local* from, size_t size, const bps_remote* to, uint32_t immediate, uint64_t user) {
  return Self(transport).PostSendAndWrite(peer, message, message_size, from, size, to, immediate, user);
}

size_t Poll(bps_transport* transport, bps_event* events, size_t capacity) {
  return Self(transport).Poll(events, capacity);
}

void Release(bps_transport* transport, uint64_t lease) { Self(transport).Release(lease); }

int32_t PostRead(bps_transport* transport, bps_peer peer, const bps_local* to, size_t size, const bps_remote* from,
                 uint64_t user) {
  if (!Announced(transport, BPS_TRANSPORT_READ)) return BPS_UNIMPLEMENTED;
  return Self(transport).PostTransfer(BPS_EVENT_READ, peer, to, size, from, 0, user);
}

int32_t MapRemote(bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size, void** base) {
  if (!Announced(transport, BPS_TRANSPORT_MAP_REMOTE)) return BPS_UNIMPLEMENTED;
  std::byte* memory = nullptr;
  const int32_t code = Self(transport).Map(peer, remote, size, &memory);
  if (code == BPS_OK) *base = memory;
  return code;
}

// Nothing else happens during a write: there is one thread.
int32_t BeginWrite(bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size, void** base) {
  if (Self(transport).WritesRefused(peer)) return BPS_UNIMPLEMENTED;
  return MapRemote(transport, peer, remote, size, base);
}

void UnmapRemote(bps_transport* transport, bps_peer, const bps_remote*) { Self(transport).Unmap(); }

int32_t CopyFrom(bps_transport* transport, bps_peer peer, const bps_remote* from, void* to, size_t size) {
  if (!Announced(transport, BPS_TRANSPORT_COPY)) return BPS_UNIMPLEMENTED;
  std::byte* memory = nullptr;
  const int32_t code = Self(transport).Resolve(peer, from, size, &memory);
  if (code == BPS_OK) std::memcpy(to, memory, size);
  return code;
}

int32_t CopyTo(bps_transport* transport, bps_peer peer, const bps_remote* to, const void* from, size_t size) {
  if (!Announced(transport, BPS_TRANSPORT_COPY)) return BPS_UNIMPLEMENTED;
  std::byte* memory = nullptr;
  const int32_t code = Self(transport).Resolve(peer, to, size, &memory);
  if (code == BPS_OK) std::memcpy(memory, from, size);
  return code;
}

int32_t WaitFd(bps_transport* transport) { return Self(transport).WaitFd(); }

int32_t Arm(bps_transport* transport) { return Self(transport).Arm(); }

int32_t Allocate(bps_transport* transport, size_t size, bps_region** region, void** base, bps_failure*) {
  return Self(transport).Allocate(size, region, base);
}

constexpr bps_transport_table kTable = {
    .struct_size = sizeof(bps_transport_table),
    .open = Open,
    .close = Close,
    .caps = Caps,
    .address = Address,
    .connect = Connect,
    .disconnect = Disconnect,
    .reg = Reg,
    .unreg = Unreg,
    .export_key = ExportKey,
    .post_send = PostSend,
    .post_write = PostWrite,
    .poll = Poll,
    .release = Release,
    .post_read = PostRead,
    .map_remote = MapRemote,
    .copy_from = CopyFrom,
    .copy_to = CopyTo,
    .wait_fd = WaitFd,
    .arm = Arm,
    .allocate = Allocate,
    .reg_shared = nullptr,  // all memory can be mapped
    .unmap_remote = UnmapRemote,
    .begin_write = BeginWrite,
    .end_write = UnmapRemote,
    .post_send_and_write = PostSendAndWrite,
};

}  // namespace

const bps_transport_table* EndpointTable() { return &kTable; }

bps_transport* ToHandle(Endpoint* endpoint) { return reinterpret_cast<bps_transport*>(endpoint); }

}  // namespace byteps::sim
