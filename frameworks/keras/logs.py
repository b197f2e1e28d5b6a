"""The logs of a batch on JAX: the error of a step that has failed comes with them.

JAX raises it where a result of the step is used. Keras makes numbers of the logs, and drops what is raised there: fit()
would go on with the variables of the failed step, and return. So the logs are waited for before Keras has them, on the
thread on which it would wait for them anyway.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

# Where fit(), evaluate() and train_on_batch() find the function; in older versions it is a method of the model.
_MODULES = ("src.utils.python_utils", "src.backend.jax.trainer")
_FUNCTION, _METHOD = "pythonify_logs", "_pythonify_logs"


@functools.cache
def raise_errors_of_logs(keras: Any) -> None:
    """From now on fit(), evaluate() and train_on_batch() of this package, whose backend is JAX, raise the error of a
    step that has failed."""
    for place in _MODULES:
        module = sys.modules.get(f"{keras.__name__}.{place}")
        if hasattr(module, _FUNCTION):
            setattr(module, _FUNCTION, _raising(getattr(module, _FUNCTION)))
    if hasattr(keras.Model, _METHOD):
        setattr(keras.Model, _METHOD, _raising(getattr(keras.Model, _METHOD)))


def _raising(own: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    @functools.wraps(own)
    def numbers(*arguments: Any) -> Any:
        jax.block_until_ready(arguments[-1])  # the logs
        return own(*arguments)

    return numbers
