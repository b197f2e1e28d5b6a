// exports.cc - what the package byteps calls by ctypes, besides the handlers: byteps/jax/programs.py.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/shim.h"
#include "frameworks/jax/native/completion_threads.h"
#include "frameworks/jax/native/failures.h"

using byteps::binding::Outcome;
using byteps::jax::TheCompletionThreads;
using byteps::jax::TheFailures;

extern "C" {

// The code of the first failure that was not told, and its message in `text` (`size` bytes, NUL included); 0: none.
BPS_SHIM_API int32_t bps_shim_jax_untold(char* text, size_t size) {
  Outcome failure;
  if (!TheFailures().First(&failure)) return BPS_OK;
  std::snprintf(text, size, "%s", failure.message.c_str());
  return failure.code;
}

// An exception with this text has come to Python.
BPS_SHIM_API void bps_shim_jax_told(const char* text) { TheFailures().Told(text); }

// Waits until XLA has been told of all that has ended, and has done what it does then; at most so long.
BPS_SHIM_API void bps_shim_jax_settle(double seconds) {
  TheCompletionThreads().Settle(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

}  // extern "C"
