"""Tensors of more than 2^31 elements. Left out unless BYTEPS_TEST_HUGE=1: they take up to 8 GB of memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import byteps
import numpy as np
import pytest
from byteps import _native
from numpy_collectives import start, taken

RunWorkers = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    os.environ.get("BYTEPS_TEST_HUGE") != "1", reason="takes up to 8 GB of memory; BYTEPS_TEST_HUGE=1 runs it"
)

ELEMENTS = 2**31 + 1000


def _push_pull() -> None:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    array = np.full(ELEMENTS, rank + 1, dtype=np.uint8)
    array[-1] = 10 * (rank + 1)
    request = start(_native.ALL_REDUCE, "huge", array, output=array)
    request.wait()
    total = size * (size + 1) // 2
    assert array[0] == total
    assert array[2**31 - 1] == total
    assert array[2**31] == total
    assert array[-1] == 10 * total
    assert int(array[:-1].min()) == int(array[:-1].max()) == total
    byteps.shutdown()


def _all_gather() -> None:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    each = 2**30 + 500 + rank
    request = start(_native.ALL_GATHER, "huge", np.full(each, rank + 1, dtype=np.int8))
    result = taken(request, np.dtype(np.int8))
    assert result.shape == (sum(2**30 + 500 + other for other in range(size)),)
    at = 0
    for other in range(size):
        part = result[at : at + 2**30 + 500 + other]
        assert int(part.min()) == int(part.max()) == other + 1
        at += len(part)
    byteps.shutdown()


@pytest.mark.parametrize("path", ["servers", "peers"])
def test_all_reduce(run_workers: RunWorkers, path: str) -> None:
    run_workers(_push_pull, workers=2, servers=0, BYTEPS_COLLECTIVE_PATH=path, BYTEPS_OP_TIMEOUT="250")


def test_all_gather(run_workers: RunWorkers) -> None:
    run_workers(_all_gather, workers=2, servers=0, BYTEPS_OP_TIMEOUT="250")
