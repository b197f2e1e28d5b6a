"""The process group: torch.distributed's collectives by BytePS's operations.

All-reduce and broadcast are BytePS's own. All-gather and what is made of it are one broadcast from each rank, so that
every byte leaves its rank once; reduce-scatter is an all-reduce of which each rank keeps its part.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from byteps import basics
from byteps.reduce_op import Average, BitAnd, BitOr, BitXor, Max, Min, Product, ReduceOp, Sum
from byteps.session import Session, current_session
from byteps.torch.c10d.work import BytePSWork
from byteps.torch.group_handle import GroupHandle, start_all
from byteps.torch.handle import Handle
from byteps.torch.ops import start_broadcast, start_push_pull
from byteps.torch.wire_buffer import check_dense, check_writable

import torch
from torch import distributed as dist

_OPS = {
    "SUM": Sum,
    "AVG": Average,
    "MIN": Min,
    "MAX": Max,
    "PRODUCT": Product,
    "BAND": BitAnd,
    "BOR": BitOr,
    "BXOR": BitXor,
}


def _op(reduce_op: Any) -> ReduceOp:
    for name, op in _OPS.items():
        if reduce_op == getattr(dist.ReduceOp, name):
            return op
    raise NotImplementedError(f"{reduce_op} is not in this release; there are {', '.join(_OPS)}")


def _single(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors were given; one process has one")
    return tensors[0]


def _copy_all(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """What is called at the end: copies the second of each pair to the first."""

    def copy(output: torch.Tensor) -> None:
        del output
        for target, source in pairs:
            target.detach().copy_(source)

    return copy


class ProcessGroupBytePS(dist.ProcessGroup):
    """A group of all ranks of the job. Made by torch.distributed.init_process_group("byteps") and new_group().

    Raises:
        NotImplementedError: a group of some ranks.
        ValueError: torch.distributed gives this process another rank than the job.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)
        basics.init()
        job = basics.info()
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        if ranks != list(range(job.size)):
            raise NotImplementedError(
                f"a group of the ranks {ranks}: this release has groups of all {job.size} ranks of the job, in order"
            )
        if options.group_rank != job.rank:
            raise ValueError(
                f"torch.distributed gives this process rank {options.group_rank}, the job rank {job.rank}; set RANK "
                'and WORLD_SIZE as the job has them, or use init_method="byteps://"'
            )
        self._rank, self._size = job.rank, job.size
        self._session: Session = current_session()
        self._group_name = str(options.group_id)
        self._kind = f"c10d.{self._group_name}"
        self._timeout: timedelta = options.timeout
        self._flying: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._sequence = 0

    # What torch.distributed asks.

    def getBackendName(self) -> str:
        """ "byteps"."""
        return "byteps"

    def name(self) -> str:
        """ "byteps"."""
        return "byteps"

    @property
    def group_name(self) -> str:
        """The name under which torch.distributed has registered the group."""
        return self._group_name

    def __repr__(self) -> str:
        return f"<ProcessGroupBytePS {self._kind!r}, rank {self._rank} of {self._size}>"

    def set_timeout(self, timeout: timedelta) -> None:
        """How long wait() waits from now on."""
        self._timeout = timeout

    def abort(self) -> None:
        """Gives up what is in flight: it fails here and on the other ranks."""
        for handle in list(self._flying):
            handle.cancel()

    def shutdown(self) -> None:
        """The job goes on: byteps.shutdown() leaves it."""

    def _start_coalescing(self, device: Any = None) -> None:
        """Operations are in flight side by side anyway."""

    def _end_coalescing(self, device: Any = None) -> BytePSWork:
        return self.barrier(None)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # How operations are started.

    def _name(self) -> str:
        """The next operation's; the same on all ranks, which call in the same order."""
        self._sequence += 1
        return f"{self._kind}.{self._session.number(self._kind)}"

    def _keep(self, handle: Handle) -> Handle:
        self._flying.add(handle)
        return handle

    def _work(self, handles: Sequence[Handle], result: list[torch.Tensor]) -> BytePSWork:
        return BytePSWork(GroupHandle(self._kind, handles), result, self._timeout)

    def _reduce(self, tensor: torch.Tensor, output: torch.Tensor, op: Any, after: Any = None) -> Handle:
        check_dense(tensor)
        check_writable(output)
        return self._keep(start_push_pull(tensor, output, _op(op), self._name(), 0, after))

    def _broadcast(self, tensor: torch.Tensor, output: torch.Tensor, root: int, after: Any = None) -> Handle:
        check_dense(tensor)
        check_writable(output)
        return self._keep(start_broadcast(tensor, output, root, self._name(), 0, after))

    def _gather_into(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, after: Any = None) -> list[Handle]:
        """Every rank's tensor into every rank's outputs. `after`: behind the last one, which is waited for last."""
        if len(outputs) != self._size:
            raise ValueError(f"{len(outputs)} outputs were given for {self._size} ranks")

        def start(root: int) -> Handle:
            source = tensor if root == self._rank else outputs[root]
            return self._broadcast(source, outputs[root], root, after if root == self._size - 1 else None)

        return start_all(start, self._size)

    # The collectives.

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> BytePSWork:
        """Reduces a tensor into itself."""
        tensor = _single(tensors)
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        return self._work([self._reduce(tensor, tensor, op)], [tensor])

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> BytePSWork:
        """Reduces several tensors into themselves."""
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        handles = start_all(lambda index: self._reduce(tensors[index], tensors[index], op), len(tensors))
        return self._work(handles, list(tensors))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> BytePSWork:
        """Reduces a tensor into the root's; the others' keep their values."""
        tensor = _single(tensors)
        output = tensor if self._rank == opts.rootRank else torch.empty_like(tensor)
        return self._work([self._reduce(tensor, output, opts.reduceOp)], [tensor])

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> BytePSWork:
        """Copies the root's tensor into everybody's."""
        tensor = _single(tensors)
        return self._work([self._broadcast(tensor, tensor, opts.rootRank)], [tensor])

    def allgather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> BytePSWork:
        """Everybody's tensor into a list; they may have different shapes, which the list has, too."""
        outputs = list(output_tensors[0])
        return self._work(self._gather_into(outputs, _single(input_tensors)), outputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> BytePSWork:
        """Everybody's tensor into one, one behind the other."""
        if output.numel() != tensor.numel() * self._size:
            raise ValueError(f"the output has {output.numel()} elements; {self._size} ranks have {tensor.numel()} each")
        after, whole = None, output
        if not output.is_contiguous():
            whole = torch.empty_like(output, memory_format=torch.contiguous_format)
            after = _copy_all([(output, whole)])
        parts = list(whole.view(-1).chunk(self._size)) if output.numel() else [whole.view(-1)] * self._size
        return self._work(self._gather_into(parts, tensor.reshape(-1), after), [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> BytePSWork:
        """all_gather_single() of several."""
        works = [self.all_gather_single(output, tensor) for output, tensor in zip(output_tensors, input_tensors)]
        handles = [handle for work in works for handle in work._handle._handles]  # type: ignore[union-attr]
        return self._work(handles, list(output_tensors))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> BytePSWork:
        """Everybody's tensor into the root's list."""
        tensor = _single(input_tensors)
        mine = self._rank == opts.rootRank
        outputs = list(output_tensors[0]) if mine else [torch.empty_like(tensor) for _ in range(self._size)]
        return self._work(self._gather_into(outputs, tensor), outputs if mine else [])

    def scatter(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> BytePSWork:
        """The root's list, one tensor to each."""
        output = _single(output_tensors)
        whole = torch.empty((self._size, *output.shape), dtype=output.dtype, device=output.device)
        if self._rank == opts.rootRank:
            torch.stack(list(input_tensors[0]), out=whole)
        handle = self._broadcast(whole, whole, opts.rootRank, _copy_all([(output, whole[self._rank])]))
        return self._work([handle], [output])

    def reduce_scatter(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
    ) -> BytePSWork:
        """The reduction of each rank's list; each rank keeps its part. Parts may have different shapes."""
        output, inputs = _single(output_tensors), list(input_tensors[0])
        whole = torch.cat([tensor.reshape(-1) for tensor in inputs])
        begin = sum(tensor.numel() for tensor in inputs[: self._rank])
        mine = whole[begin : begin + output.numel()].view(output.shape)
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        return self._work([self._reduce(whole, whole, op, _copy_all([(output, mine)]))], [output])

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> BytePSWork:
        """The reduction of a tensor that is cut into equal parts, one for each rank."""
        if tensor.numel() != output.numel() * self._size:
            raise ValueError(f"the input has {tensor.numel()} elements; {self._size} ranks get {output.numel()} each")
        parts = list(tensor.reshape(-1).chunk(self._size)) if tensor.numel() else [tensor.reshape(-1)] * self._size
        return self.reduce_scatter([output], [parts], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> BytePSWork:
        """reduce_scatter_single() of several."""
        works = [self.reduce_scatter_single(output, one, opts) for output, one in zip(output_tensors, input_tensors)]
        handles = [handle for work in works for handle in work._handle._handles]  # type: ignore[union-attr]
        return self._work(handles, list(output_tensors))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None) -> BytePSWork:
        """Ends when every rank has called it."""
        token = torch.zeros(1, dtype=torch.uint8)
        return self._work([self._reduce(token, token, dist.ReduceOp.MAX)], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits for every rank; the error names those that are missing."""
        del wait_all_ranks
        basics.barrier(f"{self._kind}.monitored", (timeout or self._timeout).total_seconds())

    def _refuse(self, what: str) -> Any:
        raise NotImplementedError(f"the backend byteps has no {what} in this release; use a group of Gloo for it")

    def alltoall(self, *arguments: Any, **keywords: Any) -> Any:
        """Raises NotImplementedError."""
        return self._refuse("all-to-all")

    def all_to_all_single(self, *arguments: Any, **keywords: Any) -> Any:
        """Raises NotImplementedError."""
        return self._refuse("all-to-all")

    alltoall_base = all_to_all_single

    def send(self, *arguments: Any, **keywords: Any) -> Any:
        """Raises NotImplementedError."""
        return self._refuse("send")

    def recv(self, *arguments: Any, **keywords: Any) -> Any:
        """Raises NotImplementedError."""
        return self._refuse("receive")

    recv_anysource = recv
