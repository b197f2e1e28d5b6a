// plugin_entry.cc - the function table of abi/transport.h over byteps::fabric::Transport.
//
// The plugin's name, a row of provider_table.h, is the macro BPS_FABRIC_PLUGIN: one source, several shared objects.
// What opens its transports is OpenTransport, or, in tests, the function BPS_FABRIC_OPEN of the header
// BPS_FABRIC_OPEN_HEADER.

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "abi/transport.h"
#include "transport_plugins/libfabric/host.h"
#include "transport_plugins/libfabric/open_transport.h"
#include "transport_plugins/libfabric/provider_info.h"
#include "transport_plugins/libfabric/provider_table.h"
#include "transport_plugins/libfabric/transport.h"

#ifdef BPS_FABRIC_OPEN_HEADER
#include BPS_FABRIC_OPEN_HEADER
#else
#define BPS_FABRIC_OPEN byteps::fabric::OpenTransport
#endif

namespace byteps::fabric {
namespace {

// Given once at load and valid for the life of the process (abi/plugin.h); open() and probe() are not given it again.
std::atomic<const bps_plugin_host*> g_host{nullptr};

Transport* Unwrap(bps_transport* transport) { return reinterpret_cast<Transport*>(transport); }

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
  const Host host(g_host.load(), config, nullptr);
  return GuardWithReason(host, failure, [&host](std::string* reason) {
    return ProbeProvider(*FindProvider(BPS_FABRIC_PLUGIN), host, reason) ? BPS_OK : BPS_UNAVAILABLE;
  });
}

int32_t Open(const bps_transport_open_args* args, bps_transport** out, bps_failure* failure) {
  // A caller that is older than a field does not have it.
  bps_transport_open_args known{};
  std::copy_n(reinterpret_cast<const char*>(args), std::min(args->struct_size, sizeof known),
              reinterpret_cast<char*>(&known));
  const Host host(g_host.load(), known.config, known.log);
  return GuardWithReason(host, failure, [&](std::string* reason) {
    std::unique_ptr<Transport> transport = BPS_FABRIC_OPEN(*FindProvider(BPS_FABRIC_PLUGIN), host, known, reason);
    if (transport == nullptr) return BPS_UNAVAILABLE;
    *out = reinterpret_cast<bps_transport*>(transport.release());
    return BPS_OK;
  });
}

void Close(bps_transport* transport) { delete Unwrap(transport); }

void Caps(bps_transport* transport, bps_transport_caps* caps) { Unwrap(transport)->Caps(caps); }

int32_t Address(bps_transport* transport, void* out, size_t* size, bps_failure*) {
  Unwrap(transport)->Address(out, size);
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
  return GuardWithReason(Unwrap(transport)->host(), failure,
                         [&](std::string* reason) { return Unwrap(transport)->Reg(base, size, out, reason); });
}

void Unreg(bps_transport* transport, bps_region* region) {
  Guard([&] {
    Unwrap(transport)->Unreg(region);
    return BPS_OK;
  });
}

int32_t ExportKey(bps_transport* transport, bps_region* region, bps_peer peer, void* key) {
  return Guard([&] { return Unwrap(transport)->ExportKey(region, peer, key); });
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
    .post_read = nullptr,
    .map_remote = nullptr,
    .copy_from = nullptr,
    .copy_to = nullptr,
    .wait_fd = WaitFd,
    .arm = Arm,
    .allocate = nullptr,
};

}  // namespace
}  // namespace byteps::fabric

extern "C" BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* host,
                                                             const bps_transport_plugin** plugin) {
  using byteps::fabric::FindProvider;
  static const bps_transport_plugin kPlugin = {
      .struct_size = sizeof(bps_transport_plugin),
      .info =
          {
              .struct_size = sizeof(bps_plugin_info),
              .abi_minor = BPS_TRANSPORT_ABI_MINOR,
              .kind = "transport",
              .name = FindProvider(BPS_FABRIC_PLUGIN)->name,
              .version = "1.0",
              .description = FindProvider(BPS_FABRIC_PLUGIN)->description,
          },
      .probe = byteps::fabric::Probe,
      .table = &byteps::fabric::kTable,
  };
  byteps::fabric::g_host = host;
  *plugin = &kPlugin;
  return BPS_OK;
}
