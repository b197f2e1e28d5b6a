// together_handler.cc - what XLA calls to keep arrays apart in memory (frameworks/jax/together.py): nothing happens.
//
// Each result has its operand's memory, or says nothing but when it is there.

#include "frameworks/jax/native/handler.h"
#include "xla/ffi/api/ffi.h"

namespace byteps::jax {
namespace {

namespace ffi = xla::ffi;

ffi::Error RunTogether(ffi::RemainingArgs, ffi::RemainingRets) { return {}; }

}  // namespace

BYTEPS_JAX_HANDLER(bps_shim_jax_together);

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_together, RunTogether, ffi::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace byteps::jax
