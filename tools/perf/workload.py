"""The tensors of one row: what each rank hands in, and what must come back.

    workload = Workload(bytes_, "float32", "sum", count=1, rank=rank, world=size)
    workload.reset()                        # inputs as they were
    ...                                     # reduce workload.tensors in place
    workload.check(workload.tensors, "byteps")

Small whole numbers, so that every result is exact in every data type, whatever the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch


def _given(pattern: torch.Tensor, op: str, rank: int) -> torch.Tensor:
    """What a rank hands in, as whole numbers. Those of all ranks add up to a multiple of their number."""
    return 1 + (pattern + rank) % 2 if op == "product" else pattern + 2 * rank


def _wanted(pattern: torch.Tensor, op: str, world: int) -> torch.Tensor:
    if op == "product":
        return math.prod((_given(pattern, op, rank) for rank in range(1, world)), start=_given(pattern, op, 0))
    total = pattern * world + world * (world - 1)
    return {"sum": total, "average": total // world, "min": pattern, "max": pattern + 2 * (world - 1)}[op]


class Workload:
    """`count` tensors of `size` bytes (whole elements), made by `new`."""

    def __init__(
        self,
        size: int,
        dtype: str,
        op: str,
        count: int,
        rank: int,
        world: int,
        new: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like,
    ) -> None:
        self.op, self.world, self._rank = op, world, rank
        kind = getattr(torch, dtype)
        element = torch.empty(0, dtype=kind).element_size()
        self.elements = size // element
        self.size = size
        self.name = f"bps_perf.{dtype}.{op}.{self.elements}"
        pattern = torch.arange(self.elements) % (3 if element == 1 else 7)
        self._source = _given(pattern, op, rank).to(kind)
        self._expected = _wanted(pattern, op, world).to(kind)
        self.tensors = [new(self._source) for _ in range(count)]
        self.reset()

    @property
    def bytes_per_round(self) -> int:
        """Of all tensors."""
        return self.size * len(self.tensors)

    def reset(self) -> None:
        """The inputs, once more."""
        for tensor in self.tensors:
            tensor.copy_(self._source)

    def check(self, results: Iterable[torch.Tensor], by: str) -> None:
        """Ends the program if one of them is not what it must be."""
        if not all(torch.equal(result, self._expected) for result in results):
            raise SystemExit(f"bps_perf: rank {self._rank}: wrong {self.op} of {self.size} bytes by {by}")
