"""A collective among workers, as bps_perf measures it: its inputs and what it must bring, and BytePS's way of it.

    workload = CollectiveWorkload(size, "float32", "allgather", rank, world)
    exchange = CollectiveExchange(workload)
    workload.check(exchange.run(), "byteps")

`size` is that of the larger side: of the output of allgather and gather, else of the input. It is cut down to the same
number of elements for each rank. Reductions are sums, roots are rank 0. Numbers are so small that every sum is exact.
"""

from __future__ import annotations

from collections.abc import Iterable

import byteps.session
import torch
from byteps import _native

_NATIVE = {
    "allgather": _native.ALL_GATHER,
    "reducescatter": _native.REDUCE_SCATTER,
    "alltoall": _native.ALL_TO_ALL,
    "broadcast": _native.BROADCAST,
    "reduce": _native.REDUCE,
    "gather": _native.GATHER,
    "scatter": _native.SCATTER,
}


class CollectiveWorkload:
    """One tensor on each rank."""

    def __init__(self, size: int, dtype: str, op: str, rank: int, world: int) -> None:
        self.op, self.world, self.dtype, self.rank = op, world, dtype, rank
        kind = getattr(torch, dtype)
        element = torch.empty(0, dtype=kind).element_size()
        part = max(1, size // element // world)
        self.size = part * world * element
        self.name = f"bps_perf.{op}.{dtype}.{part}"
        small_input = op in ("allgather", "gather")
        self._whole = torch.arange(part * (1 if small_input else world)) % 5
        sources = [(self._whole + each) % 5 for each in range(world)]
        mine = slice(part * rank, part * (rank + 1))
        wanted = {
            "allgather": lambda: torch.cat(sources),
            "gather": lambda: torch.cat(sources) if rank == 0 else None,
            "reducescatter": lambda: torch.stack([each[mine] for each in sources]).sum(0),
            "alltoall": lambda: torch.cat([each[mine] for each in sources]),
            "broadcast": lambda: sources[0],
            "reduce": lambda: torch.stack(sources).sum(0) if rank == 0 else None,
            "scatter": lambda: sources[0][mine],
        }[op]()
        self._source = sources[rank].to(kind)
        self._wanted = None if wanted is None else wanted.to(kind)
        self.input = self._source.clone()
        # A broadcast is in place, as in torch.distributed.
        self.output = self.input if op == "broadcast" else None if wanted is None else torch.empty_like(self._wanted)
        self.tensors = [self.input]

    @property
    def bytes_per_round(self) -> int:
        """Of the larger side."""
        return self.size

    def reset(self) -> None:
        """The inputs, once more; what has come is gone."""
        if self.output is not None:
            self.output.fill_(9)
        if self.op != "broadcast" or self.rank == 0:
            self.input.copy_(self._source)

    def results(self) -> list[torch.Tensor]:
        """Of a round that was written to the output."""
        return [] if self.output is None else [self.output]

    def check(self, results: Iterable[torch.Tensor], by: str) -> None:
        """Ends the program if one of them is not what it must be."""
        if not all(torch.equal(result, self._wanted) for result in results):
            raise SystemExit(f"bps_perf: rank {self.rank}: wrong {self.op} of {self.size} bytes by {by}")


class CollectiveExchange:
    """By BytePS."""

    def __init__(self, workload: CollectiveWorkload) -> None:
        self._workload = workload
        output = workload.output
        self._asked = _native.Collective(
            _NATIVE[workload.op],
            workload.name,
            dtype=getattr(_native, workload.dtype.upper()),
            shape=list(workload.input.shape),
            input=workload.input.data_ptr(),
            output=0 if output is None else output.data_ptr(),
            output_bytes=0 if output is None else output.numel() * output.element_size(),
            op=_native.SUM,
        )
        self._session = byteps.session.current_session().native

    def spoil(self) -> None:
        """The workload has done so."""

    def run(self) -> list[torch.Tensor]:
        """One round; the results."""
        self._session.collective(self._asked, buffers=self._workload).wait()
        return self._workload.results()
