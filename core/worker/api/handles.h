// handles.h - what the opaque handles of abi/byteps.h are, for the functions that take them.
//
// Threads: as abi/byteps.h says of each.
#ifndef BYTEPS_CORE_WORKER_API_HANDLES_H_
#define BYTEPS_CORE_WORKER_API_HANDLES_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "abi/byteps.h"
#include "core/base/time.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/process_set.h"
#include "core/worker/device/gpu_round.h"
#include "core/worker/session/session.h"
#include "core/worker/tensor/request.h"

struct bps_session {
  std::shared_ptr<byteps::Session> session;
};

// The request, with what its caller needs to wait for it. The session may be gone: a caller that waits holds it
// meanwhile.
struct bps_request {
  bps_request(bps_done_fn done, void* user, bool in_call = false) : request(done, user, in_call) {}

  // How much later than its deadline the engine has ended an operation at the latest.
  static constexpr byteps::Time kMargin = 10 * byteps::kSecond;

  byteps::Request request;
  std::weak_ptr<byteps::Session> session;
  byteps::Time deadline = 0;  // the operation's own
  bool small = false;
  std::shared_ptr<bps_request> held;      // by the caller, until bps_request_free
  std::shared_ptr<byteps::GpuRound> gpu;  // of operations on device memory
  // Of collectives: of each operation; and the requests it waits for, if these are not its own.
  std::vector<std::shared_ptr<byteps::CollectiveResult>> results;
  std::shared_ptr<byteps::SparseIndices> indices;  // of a sparse_all_reduce: its second result
  std::vector<std::shared_ptr<byteps::Request>> parts;
  // Of these, in the same order; nullptr: of one on memory of the host.
  std::vector<std::shared_ptr<byteps::GpuRound>> gpus_of_parts;

  // Is the result, or one of a group's, to be in memory of a GPU?
  bool OnDevice() const {
    const auto writes = [](const std::shared_ptr<byteps::GpuRound>& each) {
      return each != nullptr && each->output.on_device;
    };
    return writes(gpu) || std::any_of(gpus_of_parts.begin(), gpus_of_parts.end(), writes);
  }
};

struct bps_process_set {
  std::shared_ptr<byteps::ProcessSet> set;
};

#endif  // BYTEPS_CORE_WORKER_API_HANDLES_H_
