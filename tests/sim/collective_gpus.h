// collective_gpus.h - GPUs of simulated workers, on which their collectives have input and output.
//
//     CollectiveGpus gpus(&job, seed);                      // one for each worker; UseGpus came before
//     CollectiveProgram program(&job, seed, &gpus);
//     gpus.Move(rank, &asked); job.worker(rank).Collect(asked);
//
// Which of the two lies on the GPU, in pinned memory or on the host is drawn for each operation. Inputs come in the
// rank's own stream, as if a kernel computed them; outputs are in the same or in another stream of the rank.
#ifndef BYTEPS_TESTS_SIM_COLLECTIVE_GPUS_H_
#define BYTEPS_TESTS_SIM_COLLECTIVE_GPUS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "abi/device.h"
#include "core/worker/device/gpu_lanes.h"
#include "core/worker/device/gpu_round.h"
#include "core/worker/device/gpus.h"
#include "tests/sim/collective_program.h"
#include "tests/sim/simulated_job.h"
#include "transport_plugins/sim/random.h"

namespace byteps {

class CollectiveGpus : public CollectiveMemory {
 public:
  CollectiveGpus(SimulatedJob* job, uint64_t seed);
  ~CollectiveGpus() override;
  CollectiveGpus(const CollectiveGpus&) = delete;
  CollectiveGpus& operator=(const CollectiveGpus&) = delete;

  void Move(uint32_t rank, Collective* asked) override;
  void Bring(const Collective& moved, const Collective& asked) override;
  // That copies of this rank's collectives are in.
  std::shared_ptr<GpuLanes> lanes(uint32_t rank) const { return workers_[rank].lanes; }
  // All on the GPU from now on.
  void UseAll() { all_ = true; }
  // Outputs from now on are in the stream of inputs, or all in the other one.
  void UseOutputStream(bool other) { apart_ = other; }
  // What is put into the stream of inputs (of outputs) from now on is done when `*go` is not 0.
  void Hold(uint32_t rank, const int32_t* go, bool outputs = false);

 private:
  struct Worker {
    bps_device* device = nullptr;
    bps_device_stream stream = nullptr;
    bps_device_stream output_stream = nullptr;
    std::shared_ptr<GpuLanes> lanes;
  };
  // Memory of this kind, with these bytes in it when the stream is so far.
  void* Place(const Worker& worker, bps_device_stream stream, int32_t type, const std::byte* bytes, uint64_t size);

  SimulatedJob* const job_;
  sim::Random random_;
  std::shared_ptr<Gpus> gpus_;
  std::vector<Worker> workers_;
  bool all_ = false;
  std::optional<bool> apart_;  // unset: drawn for each operation
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_COLLECTIVE_GPUS_H_
