"""Does this job train asynchronously?"""

from __future__ import annotations

import os

from byteps.errors import UnimplementedError
from byteps.reduce_op import Average, ReduceOp, Sum


def asynchronous_training() -> bool:
    """What BYTEPS_ENABLE_ASYNC says; init() has refused what is neither yes nor no."""
    return os.environ.get("BYTEPS_ENABLE_ASYNC", "").strip().lower() in ("1", "true", "yes", "on")


def refuse_asynchronous(what: str) -> None:
    """Raises UnimplementedError if this job trains asynchronously: `what` ("byteps.jax.DistributedOptimizer") would
    train synchronously all the same."""
    if asynchronous_training():
        raise UnimplementedError(
            f"BYTEPS_ENABLE_ASYNC=1, but {what} has no asynchronous training: the servers keep parameters, and what "
            "updates them must tell. Use DistributedOptimizer, which docs/async.md says more of, or unset "
            "BYTEPS_ENABLE_ASYNC for all workers and servers"
        )


def check_asynchronous(op: ReduceOp, **given: bool) -> None:
    """Raises ValueError for what asynchronous training cannot do: another reduction than Average or Sum, which mean the
    same, and arguments that were `given`, by their names."""
    refused = {f"op={op.name}": op not in (Average, Sum), **given}
    for argument, is_given in refused.items():
        if is_given:
            raise ValueError(f"{argument} does not go with asynchronous training (BYTEPS_ENABLE_ASYNC=1)")
