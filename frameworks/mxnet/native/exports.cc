// exports.cc - what byteps/mxnet calls by ctypes. Each that has an `error` returns 1, or a pointer, or 0 and what is
// wrong in `error` (`error_size` bytes, NUL included).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "frameworks/common/collective.h"
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

// Pushes an operation on the engine: engine_operation.h.
int TryPush(EngineOperation::Kind kind, void* input, void* output, void* turn, const char* name, int32_t argument,
            int64_t priority, std::span<const int32_t> ranks, char* error, size_t error_size) {
  return Try(error, error_size, [&] {
    Push({kind, input, output, turn, name, argument, priority, {ranks.begin(), ranks.end()}});
  });
}

using Brought = std::shared_ptr<binding::CollectiveResult>;

int32_t Copy(const std::vector<int64_t>& from, int64_t* to, int32_t room) {
  std::copy_n(from.begin(), std::min(from.size(), static_cast<size_t>(room)), to);
  return static_cast<int32_t>(from.size());
}

}  // namespace
}  // namespace byteps::mxnet

#define BYTEPS_MXNET_EXPORT extern "C" __attribute__((visibility("default")))

// Finds MXNet's functions in the library at `path`; before the other two.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_bind(const char* path, char* error, size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] { byteps::mxnet::BindCApi(path); });
}

BYTEPS_MXNET_EXPORT int bps_shim_mxnet_push_pull(void* input, void* output, void* turn, const char* name, int32_t op,
                                                 int64_t priority, char* error, size_t error_size) {
  return byteps::mxnet::TryPush(byteps::mxnet::EngineOperation::Kind::kPushPull, input, output, turn, name, op,
                                priority, {}, error, error_size);
}

// The same, in asynchronous training: adds to what the servers keep, and gets that.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_add_to_servers(void* input, void* output, void* turn, const char* name,
                                                      int32_t op, int64_t priority, char* error, size_t error_size) {
  return byteps::mxnet::TryPush(byteps::mxnet::EngineOperation::Kind::kAddToServers, input, output, turn, name, op,
                                priority, {}, error, error_size);
}

// push_pull over `num_ranks` ranks (0: all), with any op.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_all_reduce(void* input, void* output, void* turn, const char* name, int32_t op,
                                                  int64_t priority, const int32_t* ranks, int32_t num_ranks,
                                                  char* error, size_t error_size) {
  return byteps::mxnet::TryPush(byteps::mxnet::EngineOperation::Kind::kAllReduce, input, output, turn, name, op,
                                priority, {ranks, ranks + num_ranks}, error, error_size);
}

BYTEPS_MXNET_EXPORT int bps_shim_mxnet_set_broadcast(void* input, void* output, void* turn, const char* name,
                                                     int32_t root, int64_t priority, const int32_t* ranks,
                                                     int32_t num_ranks, char* error, size_t error_size) {
  return byteps::mxnet::TryPush(byteps::mxnet::EngineOperation::Kind::kSetBroadcast, input, output, turn, name, root,
                                priority, {ranks, ranks + num_ranks}, error, error_size);
}

BYTEPS_MXNET_EXPORT int bps_shim_mxnet_broadcast(void* input, void* output, void* turn, const char* name, int32_t root,
                                                 int64_t priority, char* error, size_t error_size) {
  return byteps::mxnet::TryPush(byteps::mxnet::EngineOperation::Kind::kBroadcast, input, output, turn, name, root,
                                priority, {}, error, error_size);
}

// allgather, alltoall and reducescatter, by `what`: "allgather", "alltoall", else the last; over `num_ranks` ranks (0:
// all). `standing`: an array that stands for the result, which can be taken once that has been waited for. A pointer
// for the functions below, to be freed.
BYTEPS_MXNET_EXPORT void* bps_shim_mxnet_rows(const char* what, void* input, void* standing, void* turn,
                                              const char* name, int32_t op, int64_t priority, double prescale,
                                              double postscale, const int64_t* splits, int32_t num_splits,
                                              const int32_t* ranks, int32_t num_ranks, char* error, size_t error_size) {
  using Kind = byteps::mxnet::EngineOperation::Kind;
  auto brought = std::make_unique<byteps::mxnet::Brought>(std::make_shared<byteps::binding::CollectiveResult>());
  const std::string_view asked = what;
  const Kind kind = asked == "allgather"  ? Kind::kAllGather
                    : asked == "alltoall" ? Kind::kAllToAll
                                          : Kind::kReduceScatter;
  const bool pushed = byteps::mxnet::Try(error, error_size, [&] {
    byteps::mxnet::Push({kind,
                         input,
                         standing,
                         turn,
                         name,
                         op,
                         priority,
                         {ranks, ranks + num_ranks},
                         {splits, splits + num_splits},
                         prescale,
                         postscale,
                         *brought});
  });
  return pushed ? brought.release() : nullptr;
}

// reducescatter into an array of the right shape.
BYTEPS_MXNET_EXPORT int bps_shim_mxnet_reduce_scatter(void* input, void* output, void* turn, const char* name,
                                                      int32_t op, int64_t priority, double prescale, double postscale,
                                                      const int32_t* ranks, int32_t num_ranks, char* error,
                                                      size_t error_size) {
  return byteps::mxnet::Try(error, error_size, [&] {
    byteps::mxnet::Push({byteps::mxnet::EngineOperation::Kind::kReduceScatter,
                         input,
                         output,
                         turn,
                         name,
                         op,
                         priority,
                         {ranks, ranks + num_ranks},
                         {},
                         prescale,
                         postscale});
  });
}

// What rows have come: their memory, valid until they are freed; how many extents, and as many of them as there is room
// for; and the same for the rows from each rank.
BYTEPS_MXNET_EXPORT const void* bps_shim_mxnet_rows_data(const void* rows) {
  return (*static_cast<const byteps::mxnet::Brought*>(rows))->data();
}

BYTEPS_MXNET_EXPORT int32_t bps_shim_mxnet_rows_shape(const void* rows, int64_t* shape, int32_t room) {
  return byteps::mxnet::Copy((*static_cast<const byteps::mxnet::Brought*>(rows))->shape(), shape, room);
}

BYTEPS_MXNET_EXPORT int32_t bps_shim_mxnet_rows_splits(const void* rows, int64_t* splits, int32_t room) {
  return byteps::mxnet::Copy((*static_cast<const byteps::mxnet::Brought*>(rows))->splits(), splits, room);
}

// Also before they have come: they are dropped then.
BYTEPS_MXNET_EXPORT void bps_shim_mxnet_rows_free(void* rows) { delete static_cast<byteps::mxnet::Brought*>(rows); }
