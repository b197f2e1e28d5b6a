"""Two hundred tensors of mixed sizes and dtypes, submitted by each rank in an order of its own, a hundred times."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd

RunWorkers = Callable[..., Any]

TENSORS, ROUNDS = 200, 100
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.int16,
    torch.uint8,
)


def _stress() -> int:
    hvd.init()
    torch.set_num_threads(1)
    rank, size = hvd.rank(), hvd.size()
    shapes = random.Random(1)
    sizes = [shapes.choice((0, 1, 3, 100, 1000, 5000)) for _ in range(TENSORS - 2)] + [100_000, 300_000]
    tensors = [torch.empty(length, dtype=DTYPES[number % len(DTYPES)]) for number, length in enumerate(sizes)]
    checked = 0
    for step in range(ROUNDS):
        order = list(range(TENSORS))
        random.Random(1000 * rank + step).shuffle(order)
        handles = {}
        for number in order:
            tensor = tensors[number].fill_((number + step + rank) % 7)
            kind, name = number % 4, f"t{number}"
            if kind == 0:
                handles[number] = hvd.push_pull_async_inplace(tensor, average=False, name=name, priority=-number)
            elif kind == 1:
                handles[number] = hvd.allreduce_async_(tensor, name=name, op=hvd.Max)
            elif kind == 2:
                handles[number] = hvd.broadcast_async_(tensor, (number + step) % size, name=name)
            else:
                handles[number] = hvd.grouped_allreduce_async_([tensor, torch.ones(2)], name=name, op=hvd.Sum)
        random.Random(step - 1000 * rank).shuffle(order)
        for number in order:
            hvd.synchronize(handles[number])
            values = [(number + step + other) % 7 for other in range(size)]
            expected = {0: sum(values), 1: max(values), 2: values[(number + step) % size], 3: sum(values)}[number % 4]
            assert bool((tensors[number] == expected).all()), (step, number, tensors[number], expected)
            checked += 1
    return checked


@pytest.mark.parametrize(("workers", "servers"), [(3, 0), (2, 2)])
def test_any_order(run_workers: RunWorkers, workers: int, servers: int) -> None:
    results = run_workers(_stress, workers=workers, servers=servers, BYTEPS_OP_TIMEOUT="240").results
    assert results == [TENSORS * ROUNDS] * workers
