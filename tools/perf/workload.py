"""The tensors of one row: what each rank hands in, and what must come back.

    workload = Workload(bytes_, "float32", "sum", count=1, rank=rank, world=size)
    workload.reset()                        # inputs as they were
    ...                                     # reduce workload.tensors in place
    workload.check(workload.tensors, "byteps")

Whole numbers so small that every result is exact in every data type, in whatever order and by however many ranks it is
computed; an average of averages, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

# So many ranks, at most, hand in more than the middle, and as many less: where it is 0 their sums fit every type.
_MOST_APART = 127
# Of a product: 64 fits every type.
_TWOS = 6


def _most(kind: torch.dtype) -> int:
    """All whole numbers up to this one are exact in it."""
    return int(2 / torch.finfo(kind).eps) if kind.is_floating_point else torch.iinfo(kind).max


def _middles(index: torch.Tensor, kind: torch.dtype, op: str, world: int) -> torch.Tensor:
    """What the ranks hand in on the average, by element. 0 where they are too many for a sum of more."""
    kinds = 7 if op in ("min", "max") else min(7, _most(kind) // world)
    return kinds - index % kinds if kinds > 0 else torch.zeros_like(index)


def _twos(index: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """Whether this one's factor is 2; of never more than _TWOS ranks, and not the same number of them everywhere."""
    return (index + rank) % (max(world, _TWOS) + 1) < _TWOS


def _given(index: torch.Tensor, kind: torch.dtype, op: str, rank: int, world: int) -> torch.Tensor:
    """What a rank hands in, as whole numbers."""
    if op == "product":
        return 1 + _twos(index, rank, world).long()
    # One more than the middle, or one less; those beside each other the opposite, so that it comes to nothing.
    paired = rank < min(world // 2, _MOST_APART) * 2
    return _middles(index, kind, op, world) + (1 - (index + rank) % 2 * 2) * paired


def _wanted(index: torch.Tensor, kind: torch.dtype, op: str, world: int) -> torch.Tensor:
    if op == "product":
        return 2 ** sum(_twos(index, rank, world).long() for rank in range(world))
    middles = _middles(index, kind, op, world)
    if op == "average" or world == 1:
        return middles
    return middles * world if op == "sum" else middles + {"min": -1, "max": 1}[op]


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
        index = torch.arange(self.elements)
        self._source = _given(index, kind, op, rank, world).to(kind)
        self._expected = _wanted(index, kind, op, world).to(kind)
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
