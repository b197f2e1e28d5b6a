"""Two hundred tensors of mixed sizes and dtypes, submitted by each rank in an order of its own, again and again: single
ones, groups and process sets at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as hvd

RunWorkers = Callable[..., Any]

TENSORS, ROUNDS = 200, 100
SETS = {2: ([0], [1]), 3: ([0, 1], [0, 2]), 4: ([0, 1, 3], [1, 2])}  # by the number of workers
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
    sets = [hvd.global_process_set, *(hvd.add_process_set(ranks) for ranks in SETS[size])]
    for step in range(ROUNDS):
        order = list(range(TENSORS))
        random.Random(1000 * rank + step).shuffle(order)
        handles = {}
        for number in order:
            tensor = tensors[number].fill_((number + step + rank) % 7)
            kind, name = number % 6, f"t{number}"
            ranks = sets[number % 3] if number % 5 == 0 else sets[0]
            if rank not in ranks.ranks:
                continue
            root = ranks.ranks[(number + step) % len(ranks.ranks)]
            if kind == 0:
                handles[number] = hvd.allreduce_async_(tensor, name=name, op=hvd.Sum, process_set=ranks)
            elif kind == 1:
                handles[number] = hvd.allreduce_async_(tensor, name=name, op=hvd.Max, process_set=ranks)
            elif kind == 2:
                handles[number] = hvd.broadcast_async_(tensor, root, name=name, process_set=ranks)
            elif kind == 3:
                group = [tensor, torch.ones(2)]
                handles[number] = hvd.grouped_allreduce_async_(group, name=name, op=hvd.Sum, process_set=ranks)
            elif kind == 4:
                handles[number] = hvd.allgather_async(tensor[: 3 + rank], name=name, process_set=ranks)
            else:
                handles[number] = hvd.push_pull_async_into(tensor, tensor, name, -number, hvd.Sum, ranks)
        random.Random(step - 1000 * rank).shuffle(order)
        for number in order:
            if number not in handles:
                continue
            result = hvd.synchronize(handles[number])
            ranks = sets[number % 3] if number % 5 == 0 else sets[0]
            values = [(number + step + other) % 7 for other in ranks.ranks]
            root = (number + step) % len(ranks.ranks)
            if number % 6 == 4:
                rows = [min(3 + other, sizes[number]) for other in ranks.ranks]
                expected = [float(value) for value, count in zip(values, rows) for _ in range(count)]
                assert result.double().tolist() == expected, (step, number, result, expected)
            else:
                expected = [sum(values), max(values), values[root], sum(values), 0, sum(values)][number % 6]
                assert bool((tensors[number] == expected).all()), (step, number, tensors[number], expected)
            checked += 1
    return checked


@pytest.mark.parametrize(("workers", "servers"), [(3, 0), (2, 2), (4, 1)])
def test_any_order(run_workers: RunWorkers, workers: int, servers: int) -> None:
    results = run_workers(_stress, workers=workers, servers=servers, BYTEPS_OP_TIMEOUT="240").results
    assert all(TENSORS * ROUNDS * 3 // 4 < checked <= TENSORS * ROUNDS for checked in results)
