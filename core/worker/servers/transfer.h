// transfer.h - an operation, as far as it goes through this worker to the servers and back.
//
// Made by ServersStage::Begin, ended when nothing touches its memory any more.
//
// Threads: none; driven by the thread that drives the servers stage.
#ifndef BYTEPS_CORE_WORKER_SERVERS_TRANSFER_H_
#define BYTEPS_CORE_WORKER_SERVERS_TRANSFER_H_

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/plugin/region.h"
#include "core/worker/servers/partition.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/payload.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

struct Transfer {
  explicit Transfer(std::pmr::memory_resource* resource) : partitions(resource), memory(resource) {}

  const Tensor& tensor() const { return *operation->asked.tensor; }

  Operation* operation = nullptr;
  Areas areas;
  std::pmr::vector<Partition> partitions;  // all of the tensor's; none, if it was given up before it began
  bool alone = false;                      // nothing else was under way when it began: sent in this worker's own order
  size_t carried = 0;                      // partitions that go through this worker; the others stay idle
  size_t home = 0;                         // partitions in state home
  size_t writes = 0;                       // writes from its memory that have not ended
  size_t exposed = 0;                      // targets that may still be written, and sources that may still be read

  // The registrations of source and target with each transport (in the order of the carriers), where needed.
  struct Memory {
    Region input;
    Region output;
    std::shared_ptr<Region> device_input;  // of memory of a GPU
    std::shared_ptr<Region> device_output;
    std::weak_ptr<Region> fenced;  // what was device_output, until its last holder has let go of it
    bool addresses = true;         // they hold on to no page, whichever transport leads to those they were shown to
  };
  std::pmr::vector<Memory> memory;

  absl::Status failure;  // why it is being given up
  Time release_at = 0;   // when the servers are not waited for any longer, once given up
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_TRANSFER_H_
