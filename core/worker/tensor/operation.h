// operation.h - one submission on its way through the engine: what was asked, and how far it is.
//
// Made by the session, owned by the engine from Engine::Submit until its request ends.
//
// Threads: none; belongs to whoever drives the engine.
#ifndef BYTEPS_CORE_WORKER_TENSOR_OPERATION_H_
#define BYTEPS_CORE_WORKER_TENSOR_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/link/endpoint.h"
#include "core/plugin/region.h"
#include "core/wire/wire.h"
#include "core/worker/tensor/partition.h"
#include "core/worker/tensor/request.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

// What a caller asks.
struct Submission {
  Tensor* tensor = nullptr;
  wire::Operation kind = wire::Operation::kPushPull;
  int32_t reduction = 0;             // push_pull: BPS_SUM, ...
  int32_t root = 0;                  // broadcast: a rank
  const std::byte* input = nullptr;  // broadcast: of the root only
  std::byte* output = nullptr;
  // Of collectives that go this way: a part of a group (0: none), and the factors that the caller applies, for comparing.
  uint32_t group_size = 0, group_index = 0;
  bool scaled = false;
  double prescale = 1, postscale = 1;
  int64_t priority = 0;
  Time timeout = 0;  // of the whole operation, more than 0
  std::shared_ptr<Request> request;
};

struct Operation {
  explicit Operation(std::pmr::memory_resource* resource = std::pmr::get_default_resource())
      : partitions(resource), memory(resource) {}

  uint64_t id = 0;  // unique within the engine, from 1
  Submission asked;
  uint64_t round = 0;  // of its name
  uint64_t fingerprint = 0;
  Time deadline = 0;
  bool stall_told = false;  // the log has said for whom it waits

  // Of the servers stage.
  const std::byte* source = nullptr;  // what is pushed: the input, or, behind a local stage, what its host has folded
  std::pmr::vector<Partition> partitions;
  bool alone = false;       // nothing else was under way when it began: sent in an order of this worker's own
  size_t carried = 0;       // partitions that go through this worker; the others stay idle
  size_t home = 0;          // partitions in state home
  size_t writes = 0;        // writes from its memory that have not ended
  size_t exposed = 0;       // outputs of partitions that may still be written, and inputs that may still be read
  bool pushed_any = false;  // others know of its deadline
  // The registrations of input and output with each transport (in the order of the engine's transports), where needed.
  struct Memory {
    Region input;
    Region output;
    bool addresses = true;  // they hold on to no page, whichever transport leads to those they were shown to
  };
  std::pmr::vector<Memory> memory;
  absl::Status failure;  // why it is being given up
  Time release_at = 0;   // when the servers are not waited for any longer, once given up
};

// A number that is equal on all ranks exactly if they ask the same of a tensor: data type, shape, operation, reduction
// and root.
uint64_t Fingerprint(const Submission& asked);

// "push_pull (sum) of "w" (float32, 3), round 7", for errors.
std::string DescribeOperation(const Operation& operation);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_OPERATION_H_
