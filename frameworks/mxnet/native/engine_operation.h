// engine_operation.h - an operation on NDArrays as MXNet's engine runs it: after what computes its input, before what
// reads its output, and holding none of the engine's threads while it travels.
//
// Operations of one name run in the order in which they were pushed: each writes, for the engine, an array that stands
// for the name. So a name may be used again at once, and the ranks' programs meet in their order. The round of one
// whose input has failed is given up (rounds.h).
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_MXNET_NATIVE_ENGINE_OPERATION_H_
#define BYTEPS_FRAMEWORKS_MXNET_NATIVE_ENGINE_OPERATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frameworks/common/collective.h"
#include "frameworks/mxnet/native/c_api.h"

namespace byteps::mxnet {

struct EngineOperation {
  enum class Kind {
    kPushPull,
    kAddToServers,  // what the servers keep in asynchronous training
    kBroadcast,
    kAllReduce,     // of `ranks`, and what servers cannot do
    kSetBroadcast,  // of `ranks`
    kAllGather,     // these three bring other shapes than they are given
    kAllToAll,
    kReduceScatter,
  };

  Kind kind;
  NDArrayHandle input;
  NDArrayHandle output;  // may be `input`; with `brought`, an array that stands for it
  NDArrayHandle turn;    // stands for the name
  std::string name;
  int32_t argument;                  // BPS_SUM, ...; or the root's rank
  int64_t priority;                  // larger is sooner
  std::vector<int32_t> ranks = {};   // of a process set; empty: all
  std::vector<int64_t> splits = {};  // kAllToAll: rows for each rank; empty: equal numbers
  double prescale = 1;               // kReduceScatter
  double postscale = 1;
  // Where a result goes whose shape is not known before: filled before the engine hands `output` on. nullptr: into the
  // memory of `output`.
  std::shared_ptr<binding::CollectiveResult> brought = nullptr;
};

// Hands it to the engine. Throws std::runtime_error if it cannot be done at all; what goes wrong later is an MXNetError
// of the thread that waits for the output.
void Push(const EngineOperation& operation);

}  // namespace byteps::mxnet

#endif  // BYTEPS_FRAMEWORKS_MXNET_NATIVE_ENGINE_OPERATION_H_
