// error_text.h - what an operation that failed says in a program of JAX.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_ERROR_TEXT_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_ERROR_TEXT_H_

#include <string>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"

namespace byteps::jax {

// The library's message. A name that is in flight twice may be that of an operation inside of jax.checkpoint, which no
// program sees twice, or inside of a function with a jax.jit of its own, which JAX traces once however often a program
// calls it. The handler cannot keep the second one back: it does not know one that makes the same again from one that
// stands twice in the program, and whose order may differ between ranks.
inline std::string ErrorText(const binding::Outcome& outcome) {
  if (outcome.code != BPS_ALREADY_EXISTS) return outcome.message;
  return outcome.message +
         ". XLA runs operations of a program at the same time. Inside of jax.checkpoint an operation runs again in the "
         "backward pass: keep its result, by checkpoint_name(result, \"sums\") of jax.ad_checkpoint and the policy "
         "jax.checkpoint_policies.save_only_these_names(\"sums\"). A function under a jax.jit of its own is traced "
         "once, so an operation inside of it has one name in all its calls, also without name=: leave out that inner "
         "jit, or pass the name as a static argument. Others need names of their own";
}

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_ERROR_TEXT_H_
