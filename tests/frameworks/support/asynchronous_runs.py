"""What asynchronous training does in every framework, given a step of it: how far apart ranks may be, and what becomes
of a rank whose peer has died.

`step(size)` adds `size` to the weights, by an optimizer of the framework, and returns the smallest of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import byteps
import pytest

Step = Callable[[float], float]

STEPS = 8
ASYNCHRONOUS = {"BYTEPS_ENABLE_ASYNC": "1"}


def bounded(bound: int) -> dict[str, str]:
    """The environment of run_bounded."""
    return {**ASYNCHRONOUS, "BYTEPS_STALENESS": str(bound)}


def run_bounded(step: Step) -> None:
    """Rank 1 adds 100 in each step, and is slow. After n steps a rank has the other's up to n less the bound."""
    rank, bound = byteps.rank(), int(os.environ["BYTEPS_STALENESS"])
    own, others = (100, 1) if rank else (1, 100)
    for number in range(1, STEPS + 1):
        if rank:
            time.sleep(0.05)  # only so that the bound has something to do
        found = step(own)
        assert found >= own * number + others * (number - bound), (number, found)


def run_until_the_peer_dies(step: Step, error: type[Exception]) -> None:
    """Rank 1 dies after three steps. The other gets `error`, with the name of the dead, and raises it."""
    rank = byteps.rank()
    with pytest.raises(error, match="rank 1") as caught:
        for number in range(1_000_000):
            if rank == 1 and number == 3:
                os._exit(3)
            step(1.0)
    print(f"heard: {caught.value}", flush=True)
    raise caught.value
