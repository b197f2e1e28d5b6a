// collectives_face.h - the collectives of abi/device.h on top of a C++ class.
//
//     constexpr bps_device_collectives kCollectives = CollectivesFace<Comm, &g_host>::Table<NewId, Join>();
//
// `Comm` has the verbs as methods, which throw Error (device_plugins/common/error.h); State answers whether something
// may be put in; Leave comes before an orderly end, the destructor aborts.
//
// Threads: those of abi/device.h.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_COLLECTIVES_FACE_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_COLLECTIVES_FACE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "abi/device.h"
#include "device_plugins/common/host.h"

namespace byteps::devices {

template <typename Comm, const std::atomic<const bps_plugin_host*>* host>
class CollectivesFace {
 public:
  // NewId(config, id): writes BPS_DEVICE_COMM_ID bytes. Join(device, args): never nullptr.
  template <void (*new_id)(const void*, uint8_t*), Comm* (*join)(bps_device*, const bps_device_join_args&)>
  static constexpr bps_device_collectives Table() {
    return {
        .struct_size = sizeof(bps_device_collectives),
        .unique_id = [](const void* config, uint8_t* id, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { new_id(config, id); });
        },
        .join = [](bps_device* device, const bps_device_join_args* args, bps_device_comm** comm,
                   bps_failure* failure) -> int32_t {
          return Run(failure, [&] {
            bps_device_join_args known = {};
            std::memcpy(&known, args, std::min(args->struct_size, sizeof known));
            *comm = reinterpret_cast<bps_device_comm*>(join(device, known));
          });
        },
        .state = [](bps_device_comm* comm, bps_failure* failure) -> int32_t {
          bool ready = false;
          const int32_t code = Run(failure, [&] { ready = Of(comm)->State(); });
          return code != BPS_OK ? code : (ready ? BPS_OK : BPS_DEVICE_NOT_READY);
        },
        .leave =
            [](bps_device_comm* comm) {
              Run(nullptr, [&] { Of(comm)->Leave(); });
              delete Of(comm);
            },
        .abort = [](bps_device_comm* comm) { delete Of(comm); },
        .begin = [](bps_device_comm* comm, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->Begin(); });
        },
        .end = [](bps_device_comm* comm, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->End(); });
        },
        .reduce_scatter = [](bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                             int32_t reduction, bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->ReduceScatter(from, to, count, dtype, reduction, stream); });
        },
        .all_gather = [](bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                         bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->AllGather(from, to, count, dtype, stream); });
        },
        .all_reduce = [](bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                         int32_t reduction, bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->AllReduce(from, to, count, dtype, reduction, stream); });
        },
        .reduce = [](bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                     int32_t reduction, int32_t root, bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->Reduce(from, to, count, dtype, reduction, root, stream); });
        },
        .broadcast = [](bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root,
                        bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->Broadcast(from, to, count, dtype, root, stream); });
        },
        .send = [](bps_device_comm* comm, const void* from, uint64_t count, uint32_t dtype, int32_t peer,
                   bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->Send(from, count, dtype, peer, stream); });
        },
        .receive = [](bps_device_comm* comm, void* to, uint64_t count, uint32_t dtype, int32_t peer,
                      bps_device_stream stream, bps_failure* failure) -> int32_t {
          return Run(failure, [&] { Of(comm)->Receive(to, count, dtype, peer, stream); });
        },
    };
  }

 private:
  static Comm* Of(bps_device_comm* comm) { return reinterpret_cast<Comm*>(comm); }

  template <typename Function>
  static int32_t Run(bps_failure* failure, const Function& function) noexcept {
    return Answer(host->load(), failure, function);
  }
};

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_COLLECTIVES_FACE_H_
