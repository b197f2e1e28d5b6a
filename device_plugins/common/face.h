// face.h - the function table of abi/device.h on top of a C++ class.
//
//     constexpr bps_device_table kTable = Face<Device, &g_host>::Table(Open);
//
// `Device` has the verbs as methods, which throw Error (device_plugins/common/error.h); it is destroyed by close. Open
// makes one: Device* Open(const bps_device_open_args& args), never nullptr.
//
// Threads: those of abi/device.h: any.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_FACE_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_FACE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi/device.h"
#include "device_plugins/common/host.h"

namespace byteps::devices {

// Fills `to` as far as its caller knows the struct.
template <typename Struct>
void WriteOut(Struct value, Struct* to) {
  value.struct_size = to->struct_size;
  std::memcpy(to, &value, std::min(to->struct_size, sizeof value));
}

template <typename Device, const std::atomic<const bps_plugin_host*>* host>
class Face {
 public:
  template <Device* (*open)(const bps_device_open_args&)>
  static constexpr bps_device_table Table() {
    return {
        .struct_size = sizeof(bps_device_table),
        .open = [](const bps_device_open_args* args, bps_device** out, bps_failure* failure) -> int32_t {
          return Run(failure, [&] {
            bps_device_open_args known = {};
            std::memcpy(&known, args, std::min(args->struct_size, sizeof known));
            *out = reinterpret_cast<bps_device*>(open(known));
          });
        },
        .close = [](bps_device* device) { delete Of(device); },
        .allocate = [](bps_device* device, uint64_t size, void** base, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { *base = Of(device)->Allocate(size); });
        },
        .release = [](bps_device* device, void* base, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->Release(base); });
        },
        .allocate_host = [](bps_device* device, uint64_t size, void** base, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { *base = Of(device)->AllocateHost(size); });
        },
        .release_host = [](bps_device* device, void* base, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->ReleaseHost(base); });
        },
        .register_host = [](bps_device* device, void* base, uint64_t size, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->RegisterHost(base, size); });
        },
        .unregister_host = [](bps_device* device, void* base, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->UnregisterHost(base); });
        },
        .pointer = [](bps_device* device, const void* address, bps_device_pointer* pointer, bps_failure* failure)
            -> int32_t { return Run(failure, [&] { WriteOut(Of(device)->Pointer(address), pointer); }); },
        .stream_create = [](bps_device* device, int32_t urgent, bps_device_stream* stream, bps_failure* failure)
            -> int32_t { return Run(failure, [&] { *stream = Of(device)->StreamCreate(urgent); }); },
        .stream_destroy = [](bps_device* device, bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->StreamDestroy(stream); });
        },
        .stream_state = [](bps_device* device, bps_device_stream stream, bps_device_stream_state* state,
                           bps_failure* failure) -> int32_t {
          return Run(failure, [&] { WriteOut(Of(device)->StreamState(stream), state); });
        },
        .stream_wait = [](bps_device* device, bps_device_stream stream, bps_device_event* event, bps_failure* failure)
            -> int32_t { return Run(failure, [&] { Of(device)->StreamWait(stream, event); }); },
        .event_create = [](bps_device* device, bps_device_event** event, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { *event = Of(device)->EventCreate(); });
        },
        .event_destroy = [](bps_device* device, bps_device_event* event, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->EventDestroy(event); });
        },
        .event_record = [](bps_device* device, bps_device_event* event, bps_device_stream stream, bps_failure* failure)
            -> int32_t { return Run(failure, [&] { Of(device)->EventRecord(event, stream); }); },
        .event_query = [](bps_device* device, bps_device_event* event, bps_failure* failure) -> int32_t {
          bool ready = false;
          const int32_t code = Run(failure, [&] { ready = Of(device)->EventQuery(event); });
          return code != BPS_OK ? code : (ready ? BPS_OK : BPS_DEVICE_NOT_READY);
        },
        .copy_to_host = [](bps_device* device, void* to, const void* from, uint64_t size, bps_device_stream stream,
                           bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->CopyToHost(to, from, size, stream); });
        },
        .copy_to_device = [](bps_device* device, void* to, const void* from, uint64_t size, bps_device_stream stream,
                             bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->CopyToDevice(to, from, size, stream); });
        },
        .copy_within = [](bps_device* device, void* to, const void* from, uint64_t size, bps_device_stream stream,
                          bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->CopyWithin(to, from, size, stream); });
        },
        .fill = [](bps_device* device, void* to, uint8_t byte, uint64_t size, bps_device_stream stream,
                   bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->Fill(to, byte, size, stream); });
        },
        .synchronize = [](bps_device* device, bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->Synchronize(stream); });
        },
        .fold = [](bps_device* device, void* to, const void* const* sources, uint32_t n, uint64_t count, uint32_t dtype,
                   int32_t reduction, bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->Fold(to, sources, n, count, dtype, reduction, stream); });
        },
        .flush_remote = [](bps_device* device, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->FlushRemote(); });
        },
        .dmabuf = [](bps_device* device, void* base, uint64_t size, int32_t* descriptor, bps_failure* failure)
            -> int32_t { return Run(failure, [&] { *descriptor = Of(device)->DmaBuf(base, size); }); },
        .convert = [](bps_device* device, void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype,
                      uint64_t count, double factor, bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(device)->Convert(to, to_dtype, from, from_dtype, count, factor, stream); });
        },
    };
  }

 private:
  static Device* Of(bps_device* device) { return reinterpret_cast<Device*>(device); }

  template <typename Function>
  static int32_t Run(bps_failure* failure, const Function& function) noexcept {
    return Answer(host->load(), failure, function);
  }
};

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_FACE_H_
