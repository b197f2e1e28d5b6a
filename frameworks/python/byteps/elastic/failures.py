"""Which errors are those of an operation of BytePS, in each framework."""

from __future__ import annotations

import sys

from byteps.errors import BytePSError

# With these XLA's errors begin that the library's may be.
_OF_XLA = ("ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "UNAVAILABLE")


def is_failed_operation(error: BaseException) -> bool:
    """Whether an operation of BytePS has failed: called by itself, inside of a graph of TensorFlow, or inside of a
    program of JAX."""
    if isinstance(error, BytePSError):
        return True
    # A framework that was never imported has raised nothing.
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        return "Byteps" in str(error)  # the name of the op
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(error, jax.errors.JaxRuntimeError) and str(error).startswith(_OF_XLA)
