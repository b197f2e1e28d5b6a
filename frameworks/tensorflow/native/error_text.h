// error_text.h - what an operation that failed says in TensorFlow.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ERROR_TEXT_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ERROR_TEXT_H_

#include <cstdint>
#include <string>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"

namespace byteps::tensorflow {

// What helps where byteps/tensorflow/library.py cannot order the iterations of a loop.
inline constexpr const char* kLetIterationsWait =
    "TensorFlow runs iterations of a loop at the same time if the loop calls a tf.function that was traced before it, "
    "or is in a graph of TensorFlow 1. Then let each iteration wait for the one before: begin the body of a `for` or "
    "`while` of a tf.function with tf.autograph.experimental.set_loop_options(parallel_iterations=1), and give "
    "tf.while_loop, tf.map_fn or tf.scan parallel_iterations=1";

// The library's message. Where the ranks disagree it may be about the iteration, which counts from 1 (iteration.h). A
// name that is in flight twice may be that of a loop, which no program sees that AutoGraph has written. The kernel
// cannot keep the second one back: iterations reach it in an order of each rank's own, and the ranks would reduce
// different iterations with each other.
inline std::string ErrorText(const binding::Outcome& outcome, uint64_t iteration) {
  if (outcome.code == BPS_ALREADY_EXISTS) {
    return outcome.message + ". Operations that do not wait for each other need names of their own, or " +
           "tf.control_dependencies. " + kLetIterationsWait;
  }
  if (outcome.code == BPS_FAILED_PRECONDITION && iteration != 0) {
    return outcome.message + ". Here it is iteration " + std::to_string(iteration) +
           " of a loop; the others must come to it with the same one. Let the loop have as many iterations on all " +
           "ranks. " + kLetIterationsWait;
  }
  return outcome.message;
}

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ERROR_TEXT_H_
