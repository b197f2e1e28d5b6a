// operation.h - one submission on its way through the engine: what was asked, and how far it is.
//
// Made by the session, owned by the engine from Engine::Submit until its request ends.
//
// Threads: none; belongs to the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_TENSOR_OPERATION_H_
#define BYTEPS_CORE_WORKER_TENSOR_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/reduce/dtype.h"
#include "core/wire/wire.h"
#include "core/worker/tensor/payload.h"
#include "core/worker/tensor/request.h"
#include "core/worker/tensor/tensor.h"
#include "core/worker/timeline/timeline.h"

namespace byteps {

struct GpuRound;

// What a caller asks.
struct Submission {
  Tensor* tensor = nullptr;
  wire::Operation kind = wire::Operation::kPushPull;
  int32_t reduction = 0;             // push_pull: BPS_SUM, ...
  int32_t root = 0;                  // broadcast: a rank
  const std::byte* input = nullptr;  // broadcast: of the root only
  std::byte* output = nullptr;
  // Where these are; with device memory, what the caller's streams were told (core/worker/device/gpu_round.h).
  Device input_device, output_device;
  std::shared_ptr<GpuRound> gpu;
  uint32_t memory_dtype = 0;  // of what is in the memory of the GPU, if not the tensor's (0)
  // Of collectives that go this way: a part of a group (0: none), and the factors that the caller applies, for
  // comparing.
  uint32_t group_size = 0, group_index = 0;
  uint64_t match = 0;  // a number of the caller's, for comparing; 0: none
  bool scaled = false;
  double prescale = 1, postscale = 1;
  int64_t priority = 0;
  Time timeout = 0;  // of the whole operation, more than 0
  // Not OK: this rank takes no part. The round is used up and ends with this, here and at the other ranks; there is no
  // input and no output.
  absl::Status given_up;
  std::shared_ptr<Request> request;
  // What takes down what becomes of it, and when it was submitted; nullptr: nothing does.
  Timeline* timeline = nullptr;
  Time submitted_at = 0;

  // The data type and the size of input and output where they lie.
  uint32_t DtypeInMemory() const { return memory_dtype != 0 ? memory_dtype : tensor->dtype(); }
  uint64_t BytesInMemory() const {
    return memory_dtype != 0 ? tensor->elements() * DtypeSize(memory_dtype) : tensor->bytes();
  }
};

struct Operation {
  uint64_t id = 0;  // unique within the engine, from 1
  Submission asked;
  uint64_t round = 0;  // of its name
  uint64_t fingerprint = 0;
  Time deadline = 0;
  bool stall_told = false;  // the log has said for whom it waits
  bool left = false;        // its name may be submitted again
  bool by_gpus = false;     // this host's GPUs have reduced it: stages among its workers let it pass
  bool known = false;       // others know of its deadline, and name whom they miss
  absl::Status failure;     // why it is being given up

  // For the timeline. `number`, `bytes`: as core/worker/timeline/timeline_record.h says of the event.
  void Note(TimelineEvent event, Time at, uint64_t number = 0) const {
    if (asked.timeline != nullptr) asked.timeline->Note({.event = event, .operation = id, .at = at, .number = number});
  }
  void NotePart(TimelineEvent event, Time at, uint32_t part, uint64_t bytes = 0, uint64_t number = 0) const {
    if (asked.timeline == nullptr) return;
    asked.timeline->Note({.event = event, .part = part, .operation = id, .at = at, .bytes = bytes, .number = number});
  }
  // That it was submitted, if this round is to be taken down.
  void NoteSubmitted();
};

// How many parts an operation has: those of its tensor's cut; one, where it is not cut.
uint32_t PartCount(const Operation& operation);
// Where its bytes are and its result belongs. A broadcast has no source but at its root, and no target there.
Areas AreasOf(const Operation& operation, uint32_t own_rank);

// A number that is equal on all ranks exactly if they ask the same of a tensor: data type, shape, operation, reduction,
// root, place in a group, scaling and the caller's number.
uint64_t Fingerprint(const Submission& asked);

// "push_pull (sum) of "w" (float32, 3), round 7", for errors.
std::string DescribeOperation(const Operation& operation);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_OPERATION_H_
