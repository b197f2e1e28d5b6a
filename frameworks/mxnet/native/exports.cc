// exports.cc - what byteps/mxnet calls by ctypes. Each returns 1, or 0 and what is wrong in `error` (`error_size`
// bytes, NUL included).

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

#include "frameworks/mxnet/native/c_api.h"
#include "frameworks/mxnet/native/engine_operation.h"

namespace byteps::mxnet {
namespace {

template <typename F>
int Try(char* error, size_t error_size, F call) {
  try {
    call();
    return 1;
  } catch (const std::exception& failure) {
    std::snprintf(error, error_size, "%s", failure.what());
    return 0;
  }
}

}  // namespace
}  // namespace byteps::mxnet

#define BYTEPS_MXNET_EXPORT extern "C" __attribute__((visibility("default")))

// Finds MXNet's functions in the library at `path`; before the other two.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_bind(const char* path, char* error, size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] { byteps::mxnet::BindCApi(path); });
}

// Pushes an operation on the engine: engine_operation.h.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_push_pull(void* input, void* output, void* turn, const char* name, int32_t op,
                                                 int64_t priority, char* error, size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] {
    byteps::mxnet::Push({byteps::mxnet::EngineOperation::Kind::kPushPull, input, output, turn, name, op, priority});
  });
}

// The same, in asynchronous training: adds to what the servers keep, and gets that.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_add_to_servers(void* input, void* output, void* turn, const char* name,
                                                      int32_t op, int64_t priority, char* error, size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] {
    byteps::mxnet::Push({byteps::mxnet::EngineOperation::Kind::kAddToServers, input, output, turn, name, op, priority});
  });
}

// push_pull over `num_ranks` ranks (0: all), with any op.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_all_reduce(void* input, void* output, void* turn, const char* name, int32_t op,
                                                  int64_t priority, const int32_t* ranks, int32_t num_ranks,
                                                  char* error, size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] {
    byteps::mxnet::Push({byteps::mxnet::EngineOperation::Kind::kAllReduce,
                         input,
                         output,
                         turn,
                         name,
                         op,
                         priority,
                         {ranks, ranks + num_ranks}});
  });
}

BYTEPS_MXNET_EXPORT int bps_shim_mxnet_set_broadcast(void* input, void* output, void* turn, const char* name,
                                                     int32_t root, int64_t priority, const int32_t* ranks,
                                                     int32_t num_ranks, char* error, size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] {
    byteps::mxnet::Push({byteps::mxnet::EngineOperation::Kind::kSetBroadcast,
                         input,
                         output,
                         turn,
                         name,
                         root,
                         priority,
                         {ranks, ranks + num_ranks}});
  });
}

BYTEPS_MXNET_EXPORT int bps_shim_mxnet_broadcast(void* input, void* output, void* turn, const char* name, int32_t root,
                                                 int64_t priority, char* error, size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] {
    byteps::mxnet::Push({byteps::mxnet::EngineOperation::Kind::kBroadcast, input, output, turn, name, root, priority});
  });
}
