"""Does this job train asynchronously?"""

from __future__ import annotations

import os

from byteps.errors import UnimplementedError


def asynchronous_training() -> bool:
    """What BYTEPS_ENABLE_ASYNC says; init() has refused what is neither yes nor no."""
    return os.environ.get("BYTEPS_ENABLE_ASYNC", "").strip().lower() in ("1", "true", "yes", "on")


def refuse_asynchronous(what: str) -> None:
    """Raises UnimplementedError if this job trains asynchronously: `what` ("byteps.jax.DistributedOptimizer") would
    train synchronously all the same."""
    if asynchronous_training():
        raise UnimplementedError(
            f"BYTEPS_ENABLE_ASYNC=1, but {what} has no asynchronous training; byteps.torch.DistributedOptimizer has. "
            "Unset BYTEPS_ENABLE_ASYNC for all workers and servers"
        )
