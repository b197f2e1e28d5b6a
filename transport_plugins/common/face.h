// face.h - the functions of abi/transport.h on top of a C++ class: what every plugin_entry.cc would write again.
//
//     using Face = transports::Face<Transport, Region>;
//     int32_t Open(const bps_transport_open_args* args, bps_transport** out, bps_failure* failure) {
//       return Face::Open(plugin_host, args, out, failure, Transport::Open);
//     }
//     constexpr bps_transport_table kTable = Face::Table(Open);
//
// Transport has a method for each function, of its name (WriteAddress for address); those whose function takes a
// bps_failure get a string for the reason instead. host() is what logs and fails for it: a transports::Host, or
// derived. Optional functions are in the table if it has the method. Region is what its bps_region* point to.
//
// Threads: as abi/transport.h. Errors: an exception becomes a code (guard.h).
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_FACE_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_FACE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "abi/byteps.h"
#include "abi/transport.h"
#include "transport_plugins/common/guard.h"

namespace byteps::transports {

template <typename Transport, typename Region = bps_region>
class Face {
 public:
  using OpenFunction = decltype(bps_transport_table::open);
  using Host = std::remove_cvref_t<decltype(std::declval<const Transport&>().host())>;

  // The whole of a plugin's open: make(host, args, &reason) answers with a std::unique_ptr<Transport>, or none and why.
  template <typename Make>
  static int32_t Open(const bps_plugin_host* plugin_host, const bps_transport_open_args* args, bps_transport** out,
                      bps_failure* failure, const Make& make) {
    // A caller that is older than a field does not have it.
    bps_transport_open_args known{};
    std::copy_n(reinterpret_cast<const char*>(args), std::min(args->struct_size, sizeof known),
                reinterpret_cast<char*>(&known));
    const Host host(plugin_host, known.config, known.log);
    return GuardWithReason(host, failure, [&](std::string* reason) {
      std::unique_ptr<Transport> transport = make(host, known, reason);
      if (transport == nullptr) return BPS_UNAVAILABLE;
      *out = reinterpret_cast<bps_transport*>(transport.release());
      return BPS_OK;
    });
  }

  static constexpr bps_transport_table Table(OpenFunction open) {
    bps_transport_table table = Required(open);
    AddCombined(&table);
    AddOneSided(&table);
    AddMemory(&table);
    return table;
  }

 private:
  static Transport* Of(bps_transport* transport) { return reinterpret_cast<Transport*>(transport); }
  static Region* Of(bps_region* region) { return reinterpret_cast<Region*>(region); }

  // `make(&region, &reason)` registers.
  template <typename Make>
  static int32_t NewRegion(bps_transport* transport, bps_region** out, bps_failure* failure, const Make& make) {
    return GuardWithReason(Of(transport)->host(), failure, [&](std::string* reason) {
      Region* region = nullptr;
      const int32_t code = make(&region, reason);
      if (code == BPS_OK) *out = reinterpret_cast<bps_region*>(region);
      return code;
    });
  }

  template <typename Function>
  static void GuardVoid(const Function& function) noexcept {
    Guard([&] {
      function();
      return BPS_OK;
    });
  }

  static constexpr bps_transport_table Required(OpenFunction open) {
    return {
        .struct_size = sizeof(bps_transport_table),
        .open = open,
        .close = [](bps_transport* transport) { delete Of(transport); },
        .caps = [](bps_transport* transport, bps_transport_caps* caps) { Of(transport)->Caps(caps); },
        .address = [](bps_transport* transport, void* out, size_t* size, bps_failure*) -> int32_t {
          Of(transport)->WriteAddress(out, size);
          return BPS_OK;
        },
        .connect = [](bps_transport* transport, const bps_connect_args* args, bps_failure* failure) -> int32_t {
          // An older library has fewer fields.
          bps_connect_args known = {};
          std::memcpy(&known, args, std::min(args->struct_size, sizeof known));
          return GuardWithReason(Of(transport)->host(), failure,
                                 [&](std::string* reason) { return Of(transport)->Connect(known, reason); });
        },
        .disconnect = [](bps_transport* transport, bps_peer peer) -> int32_t {
          return Guard([&] { return Of(transport)->Disconnect(peer); });
        },
        .reg = [](bps_transport* transport, void* base, size_t size, bps_region** out,
                  bps_failure* failure) -> int32_t {
          return NewRegion(transport, out, failure, [&](Region** region, std::string* reason) {
            return Of(transport)->Reg(base, size, region, reason);
          });
        },
        .unreg = [](bps_transport* transport,
                    bps_region* region) { GuardVoid([&] { Of(transport)->Unreg(Of(region)); }); },
        .export_key = [](bps_transport* transport, bps_region* region, bps_peer peer, void* key) -> int32_t {
          return Guard([&] { return Of(transport)->ExportKey(Of(region), peer, key); });
        },
        .post_send = [](bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user)
            -> int32_t { return Guard([&] { return Of(transport)->PostSend(peer, data, size, user); }); },
        .post_write = [](bps_transport* transport, bps_peer peer, const bps_local* from, size_t size,
                         const bps_remote* to, uint32_t immediate, uint64_t user) -> int32_t {
          return Guard([&] { return Of(transport)->PostWrite(peer, *from, size, *to, immediate, user); });
        },
        .poll = [](bps_transport* transport, bps_event* events, size_t capacity) -> size_t {
          size_t count = 0;
          GuardVoid([&] { count = Of(transport)->Poll(events, capacity); });
          return count;
        },
        .release = [](bps_transport* transport, uint64_t lease) { GuardVoid([&] { Of(transport)->Release(lease); }); },
        .wait_fd = [](bps_transport* transport) -> int32_t { return Of(transport)->WaitFd(); },
        .arm = [](bps_transport* transport) -> int32_t { return Guard([&] { return Of(transport)->Arm(); }); },
    };
  }

  static constexpr void AddCombined(bps_transport_table* table) {
    if constexpr (requires { &Transport::PostSendAndWrite; }) {
      table->post_send_and_write = [](bps_transport* transport, bps_peer peer, const void* message, size_t message_size,
                                      const bps_local* from, size_t size, const bps_remote* to, uint32_t immediate,
                                      uint64_t user) -> int32_t {
        return Guard([&] {
          return Of(transport)->PostSendAndWrite(peer, {static_cast<const std::byte*>(message), message_size}, *from,
                                                 size, *to, immediate, user);
        });
      };
    }
  }

  // Reads and writes in which the other side takes no part.
  static constexpr void AddOneSided(bps_transport_table* table) {
    if constexpr (requires { &Transport::PostRead; }) {
      table->post_read = [](bps_transport* transport, bps_peer peer, const bps_local* to, size_t size,
                            const bps_remote* from, uint64_t user) -> int32_t {
        return Guard([&] { return Of(transport)->PostRead(peer, *to, size, *from, user); });
      };
    }
    if constexpr (requires { &Transport::MapRemote; }) {
      table->map_remote = [](bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size,
                             void** base) -> int32_t {
        return Guard([&] { return Of(transport)->MapRemote(peer, *remote, size, base); });
      };
    }
    if constexpr (requires { &Transport::UnmapRemote; }) {
      table->unmap_remote = [](bps_transport* transport, bps_peer peer, const bps_remote* remote) {
        GuardVoid([&] { Of(transport)->UnmapRemote(peer, *remote); });
      };
    }
    if constexpr (requires { &Transport::CopyFrom; }) {
      table->copy_from = [](bps_transport* transport, bps_peer peer, const bps_remote* from, void* to,
                            size_t size) -> int32_t {
        return Guard([&] { return Of(transport)->CopyFrom(peer, *from, to, size); });
      };
    }
    if constexpr (requires { &Transport::CopyTo; }) {
      table->copy_to = [](bps_transport* transport, bps_peer peer, const bps_remote* to, const void* from,
                          size_t size) -> int32_t {
        return Guard([&] { return Of(transport)->CopyTo(peer, *to, from, size); });
      };
    }
    if constexpr (requires { &Transport::BeginWrite; }) {
      table->begin_write = [](bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size,
                              void** base) -> int32_t {
        return Guard([&] { return Of(transport)->BeginWrite(peer, *remote, size, base); });
      };
    }
    if constexpr (requires { &Transport::EndWrite; }) {
      table->end_write = [](bps_transport* transport, bps_peer peer, const bps_remote* remote) {
        GuardVoid([&] { Of(transport)->EndWrite(peer, *remote); });
      };
    }
  }

  // Memory that both sides can map.
  static constexpr void AddMemory(bps_transport_table* table) {
    if constexpr (requires { &Transport::Allocate; }) {
      table->allocate = [](bps_transport* transport, size_t size, bps_region** out, void** base,
                           bps_failure* failure) -> int32_t {
        return NewRegion(transport, out, failure, [&](Region** region, std::string* reason) {
          return Of(transport)->Allocate(size, region, base, reason);
        });
      };
    }
    if constexpr (requires { &Transport::RegDevice; }) {
      table->reg_device = [](bps_transport* transport, const bps_device_memory* memory, bps_region** out,
                             bps_failure* failure) -> int32_t {
        bps_device_memory known = {};
        std::memcpy(&known, memory, std::min(memory->struct_size, sizeof known));
        return NewRegion(transport, out, failure, [&](Region** region, std::string* reason) {
          return Of(transport)->RegDevice(known, region, reason);
        });
      };
    }
    if constexpr (requires { &Transport::RegShared; }) {
      table->reg_shared = [](bps_transport* transport, void* base, size_t size, int32_t fd, bps_region** out,
                             bps_failure* failure) -> int32_t {
        return NewRegion(transport, out, failure, [&](Region** region, std::string* reason) {
          return Of(transport)->RegShared(base, size, fd, region, reason);
        });
      };
    }
  }
};

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_FACE_H_
