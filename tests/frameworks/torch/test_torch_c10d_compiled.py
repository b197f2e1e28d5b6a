"""Compiled programs over the backend of torch.distributed, each the first to use its group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from process_group import begin, end

RunWorkers = Callable[..., Any]


def _run(operation: str) -> None:
    rank, size = begin()

    @torch.compile(backend="aot_eager")
    def program(tensor: torch.Tensor) -> torch.Tensor:
        twice = tensor * 2
        if operation == "broadcast":
            dist.broadcast(twice, 0)
        elif operation == "all_reduce":
            dist.all_reduce(twice, async_op=True).wait()
        else:
            dist.barrier()
        return twice + 1

    expected = {"broadcast": 3.0, "all_reduce": 1.0 + size * (size + 1), "barrier": 3.0 + 2 * rank}[operation]
    for _ in range(2):
        assert torch.equal(program(torch.full((3,), 1.0 + rank)), torch.full((3,), expected))
    end()


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "barrier"])
def test_the_first_operation_of_a_group(operation: str, run_workers: RunWorkers) -> None:
    run_workers(_run, operation)
