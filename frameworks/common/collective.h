// collective.h - a collective of a framework's kernel: all-gather, all-to-all, reductions over a set of ranks ...
//
//     CollectiveSpec spec{BPS_ALL_GATHER, {"tokens", BPS_INT32, shape, 1}, input};
//     Collective(TheSession(), spec, [context](const Outcome& outcome, CollectiveResult result) { ... });
//
// As operation.h says of PushPull: nothing blocks, operations meet by name (and set), `done` runs exactly once. It runs
// on a thread of the library; or on the caller's, before the call returns, if the operation was refused or has ended by
// then.
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_COMMON_COLLECTIVE_H_
#define BYTEPS_FRAMEWORKS_COMMON_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/operation.h"

namespace byteps::binding {

// What to do; valid during the call, but for the memory at `input` and `output`.
struct CollectiveSpec {
  int32_t kind;            // BPS_ALL_GATHER, ...
  TensorSpec tensor;       // the name, and the input
  const void* input;       // row-major, without gaps
  void* output = nullptr;  // nullptr: the library's memory
  uint64_t output_bytes = 0;
  int32_t op = BPS_SUM;
  int32_t root = 0;
  int64_t priority = 0;
  std::vector<int64_t> splits;  // empty: see bps_collective_args
  std::vector<int32_t> ranks;   // of the set; empty: all
  double prescale = 1;          // reductions: inputs are multiplied by it, and the result by the other
  double postscale = 1;
};

// What a collective has brought. The memory stays valid as long as this object, also behind the end of the session.
class CollectiveResult {
 public:
  CollectiveResult() = default;  // nothing
  // Takes the request, which has ended well.
  CollectiveResult(const Library& library, bps_request* request);

  const void* data() const { return result_.data; }
  uint64_t bytes() const { return result_.bytes; }
  std::vector<int64_t> shape() const;
  std::vector<int64_t> splits() const;  // rows, by the ranks of the set; empty where the kind has none

 private:
  std::shared_ptr<bps_request> request_;
  bps_result result_ = BPS_RESULT_INIT;
};

using CollectiveDone = std::function<void(const Outcome& outcome, CollectiveResult result)>;

void Collective(const AttachedSession& session, const CollectiveSpec& spec, CollectiveDone done);

// As GiveUpPushPull (operation.h).
void GiveUp(const AttachedSession& session, const CollectiveSpec& spec, const char* reason, Done ended);

// Inside of session.Use(): what `spec` says, as the library takes it, but for devices and the end; valid as long as
// `spec`.
bps_status* FillArgs(const AttachedSession& session, const CollectiveSpec& spec, bps_collective_args* args);

}  // namespace byteps::binding

#endif  // BYTEPS_FRAMEWORKS_COMMON_COLLECTIVE_H_
