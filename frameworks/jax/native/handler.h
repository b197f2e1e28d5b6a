// handler.h - how a handler is declared before XLA's macro defines it, which leaves its visibility to the compiler.
//
//     BYTEPS_JAX_HANDLER(bps_shim_jax_push_pull);
//     XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_push_pull, RunPushPull, ffi::Ffi::Bind()...);
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_HANDLER_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_HANDLER_H_

#include "xla/ffi/api/ffi.h"

#define BYTEPS_JAX_HANDLER(name) \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* name(XLA_FFI_CallFrame* call_frame)

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_HANDLER_H_
