// error_text.h - what an operation that failed says in TensorFlow.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ERROR_TEXT_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ERROR_TEXT_H_

#include <string>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"

namespace byteps::tensorflow {

// The library's message. A name that is in flight twice is mostly that of a loop, which no program sees that AutoGraph
// has written. The kernel cannot keep the second one back: iterations reach it in an order of each rank's own, and the
// ranks would reduce different iterations with each other.
inline std::string ErrorText(const binding::Outcome& outcome) {
  if (outcome.code != BPS_ALREADY_EXISTS) return outcome.message;
  return outcome.message +
         ". TensorFlow runs iterations of a loop at the same time; let each wait for the one before: begin the body of "
         "a `for` or `while` of a tf.function with tf.autograph.experimental.set_loop_options(parallel_iterations=1), "
         "give tf.while_loop, tf.map_fn or tf.scan parallel_iterations=1, and use tf.map_fn instead of "
         "tf.vectorized_map. Operations outside of loops need names of their own, or tf.control_dependencies";
}

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ERROR_TEXT_H_
