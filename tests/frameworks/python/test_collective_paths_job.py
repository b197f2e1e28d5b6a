"""The bits of all_reduce and broadcast do not depend on the way they go, nor on servers, partitions, schedulers, shared
memory and arrival."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import byteps
import numpy as np
import pytest
from byteps import _native
from numpy_collectives import DTYPES, call, start, taken

RunWorkers = Callable[..., Any]

OPS = (_native.SUM, _native.AVERAGE, _native.PRODUCT)
SIZES = (0, 1, 1000, 1025, 70_000)


def _digests(order_seed: int) -> list[str]:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    work = []
    for number, (dtype, op, count) in enumerate((d, o, c) for d in sorted(DTYPES) for o in OPS for c in SIZES):
        if dtype == "bool" and op == _native.AVERAGE:
            continue
        generator = np.random.default_rng([number, rank])
        array = (generator.standard_normal(count) * 3).astype(dtype)
        work.append((f"r{number}", _native.ALL_REDUCE, array, {"op": op}))
        if op == _native.SUM:
            work.append((f"b{number}", _native.BROADCAST, array, {"root": number % size}))
    order = list(range(len(work)))
    random.Random(order_seed * 10 + rank).shuffle(order)
    requests = {}
    for index in order:
        name, kind, array, options = work[index]
        requests[index] = start(kind, name, array, **options)
    digests = [
        hashlib.sha256(taken(requests[index], work[index][2].dtype).tobytes()).hexdigest() for index in range(len(work))
    ]
    assert call(_native.ALL_GATHER, "last", np.ones(1, dtype=np.float32)).shape == (size,)
    byteps.shutdown()
    return digests


VARIANTS: tuple[dict[str, Any], ...] = (
    {"servers": 0},
    {"servers": 0, "BYTEPS_COLLECTIVE_PATH": "peers"},
    {"servers": 1, "BYTEPS_FORCE_DISTRIBUTED": "1"},
    {"servers": 1, "BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_COLLECTIVE_PATH": "peers"},
    {"servers": 3, "BYTEPS_SHM": "0", "BYTEPS_PARTITION_BYTES": "8192", "BYTEPS_SCHEDULER": "fifo"},
    {"servers": 2, "BYTEPS_SHM": "0", "BYTEPS_TRANSPORT": "tcp", "BYTEPS_COLLECTIVE_PATH": "peers"},
)


@pytest.mark.parametrize("groups", ["none", "0-1,2"])
def test_bits_do_not_depend_on_the_way(run_workers: RunWorkers, groups: str) -> None:
    results = []
    for number, variant in enumerate(VARIANTS):
        results += run_workers(_digests, number, workers=3, BYTEPS_GROUPS=groups, **variant).results
    assert len(set(map(tuple, results))) == 1
