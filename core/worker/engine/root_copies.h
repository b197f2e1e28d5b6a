// root_copies.h - what the root of a broadcast still owes itself: its input, copied to its own output.
//
//     if (RootCopies::Owes(operation, own_rank)) copies.Add(operation);
//     for (Operation* done : copies.Run()) ...            // a bounded step: call it again while not empty
//
// A copy of gigabytes takes seconds where the output was never touched before, and the thread that copies also says
// that this worker is alive. So it goes in steps of kStep bytes.
//
// Threads: none; driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_ENGINE_ROOT_COPIES_H_
#define BYTEPS_CORE_WORKER_ENGINE_ROOT_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "core/worker/tensor/operation.h"

namespace byteps {

class RootCopies {
 public:
  static constexpr size_t kStep = size_t{8} << 20;

  // Is its output to be copied from its input, by the host?
  static bool Owes(const Operation& operation, uint32_t own_rank);

  void Add(Operation* operation) { copies_.push_back({operation, 0}); }
  // One step. The operation whose copy it has finished, or nullptr.
  Operation* Run();
  bool empty() const { return copies_.empty(); }
  bool Has(const Operation& operation) const;
  void Clear() { copies_.clear(); }

 private:
  struct Copy {
    Operation* operation;
    size_t done;
  };
  std::deque<Copy> copies_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_ENGINE_ROOT_COPIES_H_
