// plugin_entry.cc - the function table of abi/transport.h over byteps::shm::Transport.

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "abi/transport.h"
#include "transport_plugins/shm/host.h"
#include "transport_plugins/shm/transport.h"

namespace byteps::shm {
namespace {

// Given once at load and valid for the life of the process (abi/plugin.h); open() and probe() are not given it again.
std::atomic<const bps_plugin_host*> g_host{nullptr};

Transport* Unwrap(bps_transport* transport) { return reinterpret_cast<Transport*>(transport); }
Region* Unwrap(bps_region* region) { return reinterpret_cast<Region*>(region); }

// No exception may leave a plugin.
template <typename Function>
int32_t Guard(Function function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return BPS_RESOURCE_EXHAUSTED;
  } catch (const std::exception&) {
    return BPS_INTERNAL;
  }
}

// The same for functions that say why they failed: `function` gets a string for the reason.
template <typename Function>
int32_t GuardWithReason(const Host& host, bps_failure* failure, Function function) noexcept {
  try {
    std::string reason;
    const int32_t code = function(&reason);
    return code == BPS_OK ? code : host.Fail(failure, code, reason);
  } catch (const std::bad_alloc&) {
    return host.FailLiteral(failure, BPS_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& error) {
    return host.FailLiteral(failure, BPS_INTERNAL, error.what());
  }
}

int32_t Probe(const void* config, bps_failure* failure) {
  return GuardWithReason(Host(g_host.load(), config, nullptr), failure,
                         [](std::string* reason) { return Transport::Probe(reason) ? BPS_OK : BPS_UNAVAILABLE; });
}

int32_t Open(const bps_transport_open_args* args, bps_transport** out, bps_failure* failure) {
  // A caller that is older than a field does not have it.
  bps_transport_open_args known{};
  std::copy_n(reinterpret_cast<const char*>(args), std::min(args->struct_size, sizeof known),
              reinterpret_cast<char*>(&known));
  const Host host(g_host.load(), known.config, known.log);
  return GuardWithReason(host, failure, [&](std::string* reason) {
    std::unique_ptr<Transport> transport = Transport::Open(host, known, reason);
    if (transport == nullptr) return BPS_UNAVAILABLE;
    *out = reinterpret_cast<bps_transport*>(transport.release());
    return BPS_OK;
  });
}

void Close(bps_transport* transport) { delete Unwrap(transport); }

void Caps(bps_transport* transport, bps_transport_caps* caps) { Unwrap(transport)->Caps(caps); }

int32_t Address(bps_transport* transport, void* out, size_t* size, bps_failure*) {
  Unwrap(transport)->WriteAddress(out, size);
  return BPS_OK;
}

int32_t Connect(bps_transport* transport, const bps_connect_args* args, bps_failure* failure) {
  return GuardWithReason(Unwrap(transport)->host(), failure,
                         [&](std::string* reason) { return Unwrap(transport)->Connect(*args, reason); });
}

int32_t Disconnect(bps_transport* transport, bps_peer peer) {
  return Guard([&] { return Unwrap(transport)->Disconnect(peer); });
}

int32_t Reg(bps_transport* transport, void* base, size_t size, bps_region** out, bps_failure* failure) {
  return GuardWithReason(Unwrap(transport)->host(), failure, [&](std::string* reason) {
    Region* region = nullptr;
    const int32_t code = Unwrap(transport)->Reg(base, size, &region, reason);
    if (code == BPS_OK) *out = reinterpret_cast<bps_region*>(region);
    return code;
  });
}

void Unreg(bps_transport* transport, bps_region* region) {
  Guard([&] {
    Unwrap(transport)->Unreg(Unwrap(region));
    return BPS_OK;
  });
}

int32_t ExportKey(bps_transport* transport, bps_region* region, bps_peer peer, void* key) {
  return Guard([&] { return Unwrap(transport)->ExportKey(Unwrap(region), peer, key); });
}

int32_t PostSend(bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user) {
  return Guard([&] { return Unwrap(transport)->PostSend(peer, data, size, user); });
}

int32_t PostWrite(bps_transport* transport, bps_peer peer, const bps_local* from, size_t size, const bps_remote* to,
                  uint32_t immediate, uint64_t user) {
  return Guard([&] { return Unwrap(transport)->PostWrite(peer, *from, size, *to, immediate, user); });
}

size_t Poll(bps_transport* transport, bps_event* events, size_t capacity) {
  size_t count = 0;
  Guard([&] {
    count = Unwrap(transport)->Poll(events, capacity);
    return BPS_OK;
  });
  return count;
}

void Release(bps_transport* transport, uint64_t lease) {
  Guard([&] {
    Unwrap(transport)->Release(lease);
    return BPS_OK;
  });
}

int32_t PostRead(bps_transport* transport, bps_peer peer, const bps_local* to, size_t size, const bps_remote* from,
                 uint64_t user) {
  return Guard([&] { return Unwrap(transport)->PostRead(peer, *to, size, *from, user); });
}

int32_t MapRemote(bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size, void** base) {
  return Guard([&] { return Unwrap(transport)->MapRemote(peer, *remote, size, base); });
}

int32_t CopyFrom(bps_transport* transport, bps_peer peer, const bps_remote* from, void* to, size_t size) {
  return Guard([&] { return Unwrap(transport)->CopyFrom(peer, *from, to, size); });
}

int32_t CopyTo(bps_transport* transport, bps_peer peer, const bps_remote* to, const void* from, size_t size) {
  return Guard([&] { return Unwrap(transport)->CopyTo(peer, *to, from, size); });
}

int32_t Allocate(bps_transport* transport, size_t size, bps_region** out, void** base, bps_failure* failure) {
  return GuardWithReason(Unwrap(transport)->host(), failure, [&](std::string* reason) {
    Region* region = nullptr;
    const int32_t code = Unwrap(transport)->Allocate(size, &region, base, reason);
    if (code == BPS_OK) *out = reinterpret_cast<bps_region*>(region);
    return code;
  });
}

int32_t RegShared(bps_transport* transport, void* base, size_t size, int32_t fd, bps_region** out,
                  bps_failure* failure) {
  return GuardWithReason(Unwrap(transport)->host(), failure, [&](std::string* reason) {
    Region* region = nullptr;
    const int32_t code = Unwrap(transport)->RegShared(base, size, fd, &region, reason);
    if (code == BPS_OK) *out = reinterpret_cast<bps_region*>(region);
    return code;
  });
}

void UnmapRemote(bps_transport* transport, bps_peer peer, const bps_remote* remote) {
  Guard([&] {
    Unwrap(transport)->UnmapRemote(peer, *remote);
    return BPS_OK;
  });
}

int32_t BeginWrite(bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size, void** base) {
  return Guard([&] { return Unwrap(transport)->BeginWrite(peer, *remote, size, base); });
}

void EndWrite(bps_transport* transport, bps_peer peer, const bps_remote* remote) {
  Guard([&] {
    Unwrap(transport)->EndWrite(peer, *remote);
    return BPS_OK;
  });
}

int32_t WaitFd(bps_transport* transport) { return Unwrap(transport)->WaitFd(); }

int32_t Arm(bps_transport* transport) {
  return Guard([&] { return Unwrap(transport)->Arm(); });
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
    .reg_shared = RegShared,
    .unmap_remote = UnmapRemote,
    .begin_write = BeginWrite,
    .end_write = EndWrite,
};

}  // namespace
}  // namespace byteps::shm

extern "C" BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* host,
                                                             const bps_transport_plugin** plugin) {
  static const bps_transport_plugin kPlugin = {
      .struct_size = sizeof(bps_transport_plugin),
      .info =
          {
              .struct_size = sizeof(bps_plugin_info),
              .abi_minor = BPS_TRANSPORT_ABI_MINOR,
              .kind = "transport",
              .name = "shm",
              .version = "1.0",
              .description = "shared memory between the processes of one host",
          },
      .probe = byteps::shm::Probe,
      .table = &byteps::shm::kTable,
  };
  byteps::shm::g_host = host;
  *plugin = &kPlugin;
  return BPS_OK;
}
