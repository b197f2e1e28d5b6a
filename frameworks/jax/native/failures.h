// failures.h - operations that have failed, and whether the user's program has been told.
//
// XLA drops the error of a result that nothing waits for. The package byteps asks here when the session ends
// (byteps/jax/programs.py):
//
//     TheFailures().Add({BPS_UNAVAILABLE, "..."});   // where XLA gets the error
//     TheFailures().Told("UNAVAILABLE: ...");        // an exception with these words has come to Python
//     TheFailures().First(&outcome);                 // what is left: nobody has been told of it
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_FAILURES_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_FAILURES_H_

#include <deque>
#include <mutex>
#include <string_view>

#include "frameworks/common/attached_session.h"

namespace byteps::jax {

class Failures {
 public:
  Failures() = default;
  Failures(const Failures&) = delete;
  Failures& operator=(const Failures&) = delete;

  void Add(binding::Outcome failure);

  // If `text` holds the message of a failure, forgets all of them: XLA tells one error of a program, when all of the
  // program's operations have ended.
  void Told(std::string_view text);

  // The first failure that was not told; false if there is none.
  bool First(binding::Outcome* failure) const;

 private:
  mutable std::mutex mutex_;
  std::deque<binding::Outcome> untold_;
};

// Those of this process.
Failures& TheFailures();

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_FAILURES_H_
