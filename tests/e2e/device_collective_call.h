// device_collective_call.h - calls of bps_collective, as the scenarios of device_collective_scenarios.h make them.
//
//     const Side side(trainer);
//     Call call = side.AllGather("w", count, input, output);
//     side.Start(&call);
//     Ok(bps_wait(call.request, 0), "wait");
//     bps_request_free(call.request);
//
// Threads: one. Errors: as device_trainer.h.
#ifndef BYTEPS_TESTS_E2E_DEVICE_COLLECTIVE_CALL_H_
#define BYTEPS_TESTS_E2E_DEVICE_COLLECTIVE_CALL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/e2e/device_trainer.h"

namespace byteps {

// One call, with what its arguments point to: it stays where it is from Side::Place on.
struct Call {
  bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
  bps_streams streams = BPS_STREAMS_INIT;
  std::string name;
  std::vector<int64_t> shape, splits;
  bps_request* request = nullptr;
};

// The tensors of one rank, where it has them: on its GPU, or on the host.
class Side {
 public:
  explicit Side(const Trainer& trainer) : trainer_(trainer) {}

  float* New(size_t count) const {
    if (count == 0) return nullptr;
    return trainer_.on_gpu ? trainer_.gpu.Allocate(count) : trainer_.gpu.Host(count);
  }
  void Write(float* to, const std::vector<float>& values) const {
    if (values.empty()) return;
    trainer_.on_gpu ? trainer_.gpu.Write(to, values) : void(std::memcpy(to, values.data(), 4 * values.size()));
  }
  // Behind what the stream waits for.
  const float* Read(const float* from, size_t count) const {
    float* copy = trainer_.gpu.Host(count + 1);
    if (count == 0) return copy;
    trainer_.on_gpu ? trainer_.gpu.Read(copy, from, count) : void(std::memcpy(copy, from, 4 * count));
    return copy;
  }
  // `count` numbers of each rank. `output`: for those of all; nullptr: the library's own memory.
  Call AllGather(const std::string& name, size_t count, const float* input, float* output) const {
    Call call;
    call.name = name;
    call.args.kind = BPS_ALL_GATHER;
    call.shape = {static_cast<int64_t>(count)};
    call.args.input = input;
    call.args.output = output;
    if (output != nullptr) call.args.output_bytes = 4 * count * static_cast<size_t>(trainer_.info.size);
    return call;
  }
  // In the trainer's stream, which is named again when the result is needed.
  void Place(Call* call) const {
    call->args.name = call->name.c_str();
    call->args.shape = call->shape.data();
    call->args.ndim = static_cast<int32_t>(call->shape.size());
    call->args.splits = call->splits.empty() ? nullptr : call->splits.data();
    call->args.num_splits = static_cast<int32_t>(call->splits.size());
    if (call->args.dtype == 0) call->args.dtype = BPS_FLOAT32;
    if (call->args.timeout_ms == 0) call->args.timeout_ms = 60'000;
    if (!trainer_.on_gpu) return;
    if (call->args.input != nullptr) call->args.input_device = BPS_CUDA;
    if (call->args.output != nullptr) call->args.output_device = BPS_CUDA;
    call->streams.input = call->streams.output = trainer_.gpu.stream;
    call->streams.output_later = 1;
    call->args.ext = &call->streams.ext;
  }
  void Start(Call* call) const {
    Place(call);
    Ok(bps_collective(trainer_.session, &call->args, &call->request), call->name.c_str());
  }

 private:
  const Trainer& trainer_;
};

// A set of all ranks: its operations go from worker to worker.
inline bps_process_set* SetOfAll(const Trainer& trainer) {
  std::vector<int32_t> ranks;
  for (int rank = 0; rank < trainer.info.size; ++rank) ranks.push_back(rank);
  bps_process_set_args args = BPS_PROCESS_SET_ARGS_INIT;
  args.name = "everyone";
  args.ranks = ranks.data();
  args.num_ranks = trainer.info.size;
  bps_process_set* everyone = nullptr;
  Ok(bps_process_set_create(trainer.session, &args, &everyone), "process_set_create");
  return everyone;
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_DEVICE_COLLECTIVE_CALL_H_
