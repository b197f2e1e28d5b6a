"""torch.distributed's all-reduce and other collectives between the processes of this job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .collective import CollectiveWorkload
from .own_address import interface_of, own_address

if TYPE_CHECKING:
    from .workload import Workload


class Gloo:
    """A peer (peer.py); all_reduce by itself is for replay.py."""

    name = "gloo"
    reduces = True

    def __init__(self, bps: Any) -> None:
        import torch.distributed as dist

        rank, size = bps.rank(), bps.size()
        # Rank 0 listens where the others reach it, on a port the system chooses, and tells them.
        address = own_address()
        store = dist.TCPStore(address, 0, size, is_master=True, wait_for_workers=False) if rank == 0 else None
        place = (address, store.port) if store is not None else None
        address, port = bps.broadcast_object(place, root_rank=0, name="bps_perf.store")
        if store is None:
            store = dist.TCPStore(address, port, size, is_master=False)
        # By itself it takes the address of the host's name, or else loopback's of IPv4, which may not be there.
        if ":" in (here := own_address()) and (interface := interface_of(here)) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        self._dist = dist
        # It has no average: the sum is divided.
        self._ops = {"sum": "SUM", "average": "SUM", "min": "MIN", "max": "MAX", "product": "PRODUCT"}

    def all_reduce(self, tensor: Any, async_op: bool = False, op: str = "sum") -> Any:
        """In place; what to wait for if `async_op`."""
        return self._dist.all_reduce(tensor, op=getattr(self._dist.ReduceOp, self._ops[op]), async_op=async_op)

    def prepare(self, workload: Workload | CollectiveWorkload) -> None:
        """What comes are rounds of these tensors."""
        self._workload = workload

    def _finish(self, tensor: Any) -> None:
        if self._workload.op == "average":
            tensor.div_(self._workload.world, rounding_mode=None if tensor.is_floating_point() else "floor")

    def run(self) -> None:
        """All tensors, one after the other: it has no others to offer while one is under way."""
        if isinstance(self._workload, CollectiveWorkload):
            return self._collective(self._workload)
        for tensor in self._workload.tensors:
            self.all_reduce(tensor, op=self._workload.op)
            self._finish(tensor)

    def _single(self, name: str, former: str) -> Any:
        """A function that newer releases have renamed."""
        return getattr(self._dist, name, None) or getattr(self._dist, former)

    def _collective(self, workload: CollectiveWorkload) -> None:
        dist, root = self._dist, workload.rank == 0
        given, output = workload.input, workload.output
        parts = None if output is None else list(output.chunk(workload.world))
        if workload.op == "allgather":
            self._single("all_gather_single", "all_gather_into_tensor")(output, given)
        elif workload.op == "reducescatter":
            self._single("reduce_scatter_single", "reduce_scatter_tensor")(output, given)
        elif workload.op == "alltoall":
            dist.all_to_all_single(output, given)
        elif workload.op == "broadcast":
            dist.broadcast(given, 0)
        elif workload.op == "gather":
            dist.gather(given, parts if root else None, 0)
        elif workload.op == "scatter":
            dist.scatter(output, list(given.chunk(workload.world)) if root else None, 0)
        else:
            # In place: the root's input is gone, which the next reset() mends.
            dist.reduce(given, 0)
            if root:
                output.copy_(given)

    def stream(self, rounds: int) -> None:
        """All tensors in flight, each again as soon as it is back."""
        tensors, op = self._workload.tensors, self._workload.op
        works = [self.all_reduce(tensor, True, op) for tensor in tensors]
        for number in range(rounds * len(tensors)):
            index = number % len(tensors)
            works[index].wait()
            self._finish(tensors[index])
            if number < (rounds - 1) * len(tensors):
                works[index] = self.all_reduce(tensors[index], True, op)

    def close(self) -> None:
        """Leaves the process group."""
        self._dist.destroy_process_group()
