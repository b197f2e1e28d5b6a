"""Which errors are those of an operation of BytePS, in each framework."""

from __future__ import annotations

import re
import sys

from byteps.errors import BytePSError

# With these XLA's errors begin that the library's may be.
_OF_XLA = ("ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "UNAVAILABLE")
# And so the error of a program that was given what another has failed to make: the words stay, the code is lost.
_OF_A_LATER_PROGRAM = "INTERNAL: Error dispatching computation: "
# 'push_pull (sum) of "gradient" (float32, 3): ...', 'worker rank 1 (host a, ...) is gone ...', 'server 0 ...'.
_WORDS_OF_THE_LIBRARY = re.compile(r' of "|\b(worker|server) (rank )?\d|\bmembership\b')


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
    if jax is None or not isinstance(error, jax.errors.JaxRuntimeError):
        return False
    text = str(error)
    if text.startswith(_OF_XLA):
        return True
    return text.startswith(_OF_A_LATER_PROGRAM) and _WORDS_OF_THE_LIBRARY.search(text) is not None
