"""As overhead.c, from Python: an array of NumPy's, and the module under it."""

import asyncio
import time
from collections.abc import Callable

import byteps
import numpy as np
from byteps import _native
from byteps.session import current_session

_BATCHES, _ROUNDS = 50, 1000


def _measure(what: str, call: Callable[[], object]) -> None:
    best = float("inf")
    for _ in range(_BATCHES):
        start = time.perf_counter_ns()
        for _ in range(_ROUNDS):
            call()
        best = min(best, (time.perf_counter_ns() - start) / _ROUNDS)
    print(f"{what} {best:.1f}", flush=True)


async def _awaited(array: np.ndarray) -> None:
    best = float("inf")
    for _ in range(_BATCHES):
        start = time.perf_counter_ns()
        for _ in range(_ROUNDS):
            await byteps.push_pull_async(array, array, name="overhead", average=False)
        best = min(best, (time.perf_counter_ns() - start) / _ROUNDS)
    print(f"Python, await {best:.1f}", flush=True)


def main() -> None:
    byteps.init()
    array = np.ones(1, "float32")
    native, address = current_session().native, array.ctypes.data
    _measure(
        "Python, native module",
        lambda: native.push_pull("overhead", _native.FLOAT32, (1,), address, address, _native.SUM, array).wait(),
    )
    _measure("Python", lambda: byteps.push_pull(array, array, name="overhead", average=False))
    asyncio.run(_awaited(array))
    byteps.shutdown()


main()
