// operation.h - an operation of a framework's kernel: declared by its name, submitted, completed later by a callback.
//
//     PushPull(TheSession(), {"layer1.weight", BPS_FLOAT32, shape, 2}, input, output, BPS_AVERAGE, priority,
//              [context](const Outcome& outcome) { ... tell the framework ... });
//
// Nothing here blocks: the kernel returns at once, and no thread of the framework is held while the tensor travels.
// Tensors meet by name; neither declarations nor operations need the same order on all ranks.
//
// `done` runs exactly once. If the operation was accepted, it runs on a thread of the library, which moves no bytes
// meanwhile: it must hand work to the framework's own threads, and must not block. Otherwise it runs before the
// function returns, on the caller's thread. Input and output must stay valid until then. A binding that can hear of an
// end inside of a call says so (TensorSpec::done_in_call): a worker alone then wakes no thread.
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_COMMON_OPERATION_H_
#define BYTEPS_FRAMEWORKS_COMMON_OPERATION_H_

#include <cstdint>
#include <functional>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/library.h"

namespace byteps::binding {

using Done = std::function<void(const Outcome& outcome)>;

// A tensor as an operation names it; valid during the call.
struct TensorSpec {
  const char* name;      // UTF-8, not empty, the same on all ranks
  uint32_t dtype;        // BPS_FLOAT32, ...
  const int64_t* shape;  // ndim entries
  int32_t ndim;
  bool asynchronous = false;  // its servers keep a value, which push_pull adds to and gets (docs/async.md)
  uint64_t match = 0;         // what the ranks compare, as bps_match says; 0: nothing
  bool done_in_call = false;  // `done` may run inside of any PushPull or Broadcast, on the thread of its caller
};

// Declares it in a session that AttachedSession::Use holds open; the library's error.
bps_status* Declare(const Library& library, bps_session* open, const TensorSpec& spec, bps_tensor** tensor);

// Reduces `input` over all workers into `output`, which may be the same memory. `op` is BPS_SUM, ...; a larger priority
// is sooner.
void PushPull(const AttachedSession& session, const TensorSpec& tensor, const void* input, void* output, int32_t op,
              int64_t priority, Done done);

// Copies the root's `input` into every rank's `output`.
void Broadcast(const AttachedSession& session, const TensorSpec& tensor, const void* input, void* output, int32_t root,
               int64_t priority, Done done);

// Uses the next round of such an operation up without taking part (bps_give_up): its framework leaves it out. `reason`
// is for people. Until `ended` runs the name is in flight; what goes wrong is that of the session, which the other
// ranks hear anyway.
void GiveUpPushPull(const AttachedSession& session, const TensorSpec& tensor, int32_t op, const char* reason,
                    Done ended);
void GiveUpBroadcast(const AttachedSession& session, const TensorSpec& tensor, int32_t root, const char* reason,
                     Done ended);

}  // namespace byteps::binding

#endif  // BYTEPS_FRAMEWORKS_COMMON_OPERATION_H_
