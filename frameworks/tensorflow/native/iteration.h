// iteration.h - which iteration of a loop a kernel runs for: the ranks compare it, so that no two different ones meet.
//
// Operations of one name meet in the order in which each rank begins them. byteps/tensorflow/library.py lets iterations
// of loops come one after another. Where it cannot, in a function that was traced before the loop that calls it and in
// graphs of TensorFlow 1, TensorFlow runs iterations at the same time; and a loop that has ended on one rank may have
// more iterations on another. Iterations that are left out, of an operation in a branch, are left out on all ranks.
//
// Of nested loops TensorFlow tells the inner iteration alone.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ITERATION_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ITERATION_H_

#include <atomic>
#include <cstdint>

#include "frameworks/common/attached_session.h"
#include "frameworks/tensorflow/native/c_api.h"

namespace byteps::tensorflow {

struct Iteration {
  static Iteration Of(const CApi& api, TF_OpKernelContext* context);

  uint64_t number = 0;  // counts from 1; 0: in no loop, or none that TensorFlow knows of
  int64_t step = 0;     // of which run of the graph
};

// What becomes of the iterations of one kernel. When one fails, TensorFlow may begin others that it had in flight. They
// are not sent: the other ranks hear of the failure, too, and send none that they could meet.
//
//     Outcome refused = iterations.Admit(iteration);   // not OK: it is not sent, and ends so
//     iterations.End(iteration, outcome);
//
// Threads: any.
class Iterations {
 public:
  binding::Outcome Admit(const Iteration& iteration) const;
  void End(const Iteration& iteration, const binding::Outcome& outcome);

 private:
  static constexpr int64_t kNone = INT64_MIN;
  std::atomic<int64_t> failed_step_ = kNone;
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ITERATION_H_
