// device_program.h - a trainer with a GPU beside a simulated worker: memory, a stream and operations on them.
//
//     DeviceProgram program(&job.worker(0), 0);
//     DeviceCall* call = program.Submit({.name = "w", .elements = 1000, .input = numbers, .later = true});
//     job.RunUntil([&] { return call->in_stream(); });
//     program.Read(call);  ...  program.Synchronize();  call->result
//
// Inputs come into the device, and results out of it, in the trainer's own stream: what the library orders wrongly is a
// wrong number, or a race report of the fake GPU.
//
// The stages of device memory come with the first tensor that needs them, here or on another worker of the host
// (UseStages, again and again), as core/worker/session/session.h brings them.
#ifndef BYTEPS_TESTS_SIM_DEVICE_PROGRAM_H_
#define BYTEPS_TESTS_SIM_DEVICE_PROGRAM_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "abi/device.h"
#include "core/worker/device/gpu_group_options.h"
#include "core/worker/device/gpu_lanes.h"
#include "core/worker/device/gpus.h"
#include "core/worker/memory/buffer.h"
#include "tests/sim/simulated_worker.h"

namespace byteps {

struct DeviceAsk {
  std::string name;
  uint64_t elements = 0;
  std::vector<float> input;  // empty: none, on the other ranks of a broadcast
  wire::Operation kind = wire::Operation::kPushPull;
  int32_t reduction = BPS_SUM;
  int32_t root = 0;
  int64_t priority = 0;
  bool in_place = false;
  bool pinned = false;  // input and output in pinned host memory
  bool later = false;   // the stream that waits for the result is named afterwards
  bool apart = false;   // the output is in another stream of the trainer
  Time timeout = 600 * kSecond;
};

struct DeviceCall {
  std::shared_ptr<Request> request;
  std::shared_ptr<GpuRound> gpu;
  void* output = nullptr;  // where the result is
  float* copy = nullptr;   // pinned; where Read puts it
  uint64_t elements = 0;
  bool pinned = false;
  bps_device_stream stream = nullptr;  // of the output

  bool ended() const { return request->ended(); }
  bool in_stream() const { return ended() || request->state() == RequestState::kEnqueued; }
  absl::Status outcome() const { return request->outcome(); }
  std::vector<float> result() const { return std::vector<float>(copy, copy + elements); }
};

class DeviceProgram {
 public:
  // Device number `index` of the fake GPUs. `group`: what it does with the GPUs of its host; unset: nothing. `plugin`:
  // by which the library reaches them; nullptr: the fake one itself.
  DeviceProgram(SimulatedWorker* worker, int32_t index, std::optional<GpuGroupOptions> group = std::nullopt,
                const bps_device_plugin* plugin = nullptr);
  // Another GPU of the same worker, whose first tensor has been submitted.
  DeviceProgram(const DeviceProgram& first, int32_t index);
  ~DeviceProgram();
  DeviceProgram(const DeviceProgram&) = delete;
  DeviceProgram& operator=(const DeviceProgram&) = delete;

  // Copies are in these from the first tensor on, as those of the worker's collectives.
  void ShareLanes(std::shared_ptr<GpuLanes> lanes) { lanes_ = std::move(lanes); }
  // For a worker that submits no device memory itself: has another one of its host?
  void UseStagesIfAsked();
  // nullptr: refused.
  DeviceCall* Submit(const DeviceAsk& ask, absl::Status* refused = nullptr);
  // Reads the result in the stream of the output, as soon as that may.
  void Read(DeviceCall* call);
  // Writes into the memory of an operation that has ended: nothing else touches it any more.
  void Overwrite(const DeviceCall& call);
  void Synchronize();
  // The tensor of this name has other memory from now on.
  void UseNewMemory(const std::string& name) { memory_.erase(name); }
  bps_device* device() const { return device_; }
  bps_device_stream stream() const { return stream_; }
  bps_device_stream output_stream() const { return output_stream_; }

 private:
  void Open();
  struct Memory {
    void* input = nullptr;
    void* output = nullptr;
    void* pinned_input = nullptr;
    void* pinned_output = nullptr;
  };
  void UseStages();
  Memory& MemoryOf(const std::string& name, uint64_t bytes);
  void* Host(uint64_t bytes);
  void* OnDevice(uint64_t bytes);

  SimulatedWorker* const worker_;
  const int32_t index_;
  const bps_device_table* const table_;
  const std::shared_ptr<Gpus> gpus_;
  const std::optional<GpuGroupOptions> group_;
  std::shared_ptr<GpuLanes> lanes_;
  bool staged_ = false;
  bps_device* device_ = nullptr;
  bps_device_stream stream_ = nullptr;
  bps_device_stream output_stream_ = nullptr;
  std::map<std::string, Memory> memory_;
  std::deque<DeviceCall> calls_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_DEVICE_PROGRAM_H_
