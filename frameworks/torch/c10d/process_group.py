"""The process group: torch.distributed's collectives by BytePS's."""

from __future__ import annotations

import functools
import os
import weakref
import zlib
from collections.abc import Sequence
from datetime import timedelta
from types import FunctionType, SimpleNamespace
from typing import Any

from byteps import _native, basics
from byteps.launcher.environment import Environment
from byteps.process_set import ProcessSet, global_process_set, unlisted_process_set
from byteps.reduce_op import Average, BitAnd, BitOr, BitXor, Max, Min, Product, ReduceOp, Sum
from byteps.session import Session, current_session
from byteps.torch.alltoall import check_splits
from byteps.torch.c10d.meeting import init_for
from byteps.torch.c10d.outputs import check_pair, check_pairs, check_rows, fill, free_of, into_list, own_elements
from byteps.torch.c10d.work import BytePSWork
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.compiling import not_compiled
from byteps.torch.device_streams import is_device
from byteps.torch.dtypes import check_reduction
from byteps.torch.handle import Handle
from byteps.torch.submission import (
    Part,
    into_new,
    into_output,
    start_broadcast,
    start_group,
    start_part,
    start_push_pull,
)
from byteps.torch.wire_buffer import check_dense, check_writable

import torch
from torch import distributed as dist

_DEFAULT_OP_TIMEOUT = 600.0  # of BYTEPS_OP_TIMEOUT

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


def _op(options: Any, tensors: Sequence[torch.Tensor]) -> ReduceOp:
    """The reduction of these tensors that the options of a collective ask for. To be called before an operation has its
    number. Raises NotImplementedError, InvalidArgumentError."""
    op = _wanted(options)
    for tensor in tensors:
        check_reduction(op, tensor.dtype)
    return op


def _wanted(options: Any) -> ReduceOp:
    wanted = dist.ReduceOp.SUM if options is None else options.reduceOp
    for name, op in _OPS.items():
        if wanted == getattr(dist.ReduceOp, name):
            return op
    raise NotImplementedError(f"{wanted} is not in this release; there are {', '.join(_OPS)}")


def _longer_than_the_job_says(timeout: timedelta) -> float | None:
    """Seconds that an operation has in place of BYTEPS_OP_TIMEOUT; None: that counts."""
    environment = Environment(os.environ)
    # The alias's 0 means that it says nothing.
    given = (
        environment.seconds("BYTEPS_OP_TIMEOUT") or environment.seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") or None
    )
    if given is not None and timeout == dist.constants.default_pg_timeout:
        return None
    seconds = timeout.total_seconds()
    return seconds if seconds > (given or _DEFAULT_OP_TIMEOUT) else None


def _single(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors were given; one process has one")
    return tensors[0]


class ProcessGroupBytePS(dist.ProcessGroup):
    """A group of ranks of the job. Made by torch.distributed.init_process_group("byteps") and new_group().

    Attributes:
        process_set: its ranks.

    Raises:
        NotImplementedError: the ranks are not in ascending order.
        ValueError: torch.distributed gives this process another rank than the job.
    """

    def __init__(self, options: Any) -> None:
        _leave_alone()
        super().__init__(options.group_rank, options.group_size)
        init_for(options)
        job = basics.info()
        self._ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        if self._ranks != sorted(self._ranks):
            raise NotImplementedError(f"a group of the ranks {self._ranks}: they must be in ascending order")
        if self._ranks[options.group_rank] != job.rank or self._ranks[-1] >= job.size:
            raise ValueError(
                f"torch.distributed gives this process rank {self._ranks[options.group_rank]} of the ranks "
                f"{self._ranks}, the job rank {job.rank} of {job.size}; set RANK and WORLD_SIZE as the job has them, "
                'or use init_method="byteps://"'
            )
        self._rank, self._size = options.group_rank, len(self._ranks)
        self._session: Session = current_session()
        self.process_set: ProcessSet = unlisted_process_set(self._ranks)
        self._group_name = str(options.group_id)
        self._kind = f"c10d.{self._group_name}"
        # Messages of groups of the same ranks do not meet.
        self._first_tag = zlib.crc32(self._group_name.encode()) << 31
        self.set_timeout(options.timeout)
        self._flying: weakref.WeakSet[Any] = weakref.WeakSet()
        self._together: list[BytePSWork] | None = None
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

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroupBytePS:
        del device
        return self

    def __repr__(self) -> str:
        return f"<ProcessGroupBytePS {self._kind!r}, rank {self._rank} of {self._size}>"

    def set_timeout(self, timeout: timedelta) -> None:
        """How long wait() waits for what is started from now on, and operations last at most, if that is longer than
        BYTEPS_OP_TIMEOUT; where that variable is set, the default of torch.distributed does not count."""
        self._timeout = timeout
        self._op_timeout = _longer_than_the_job_says(timeout)

    def abort(self) -> None:
        """Gives up what is in flight: it fails here and on the other ranks."""
        for handle in list(self._flying):
            handle.cancel()

    def shutdown(self) -> None:
        """The job goes on: byteps.shutdown() leaves it."""

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroupBytePS | None:
        """A group of some ranks of this one, which `new_ranks` names by their ranks in it; None outside of them."""
        del opts, group_desc, device_types
        chosen = sorted(new_ranks)
        if self._rank not in chosen:
            return None
        return ProcessGroupBytePS(
            SimpleNamespace(
                group_rank=chosen.index(self._rank),
                group_size=len(chosen),
                global_ranks_in_group=[self._ranks[rank] for rank in chosen],
                group_id=group_name or f"{self._group_name}.{'_'.join(map(str, chosen))}",
                timeout=timeout or self._timeout,
            )
        )

    def _start_coalescing(self, device: Any = None) -> None:
        """What is started from here on is waited for by what _end_coalescing returns."""
        self._together = []

    def _end_coalescing(self, device: Any = None) -> BytePSWork:
        works, self._together = self._together or [], None
        handles = [handle for work in works for handle in work.handles]
        return BytePSWork(handles, [tensor for work in works for tensor in work.outputs], self._timeout)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # How operations are started.

    def _name(self) -> str:
        """The next operation's; the same on all ranks, which call in the same order."""
        self._sequence += 1
        return f"{self._kind}.{self._session.number(self._kind)}"

    def _rank_in_job(self, operation: str, what: str, rank: int) -> int:
        """The rank in the job of this rank of the group. To be called before an operation has its number. Raises
        ValueError."""
        if not 0 <= rank < self._size:
            among = "" if self._ranks == list(range(self._size)) else f", which are {self._ranks} of the job"
            raise ValueError(
                f"{operation}: the {what} is rank {rank}; the group {self._group_name!r} has the ranks 0 to "
                f"{self._size - 1}{among}"
            )
        return self._ranks[rank]

    def _work(self, handle: Handle | CollectiveHandle[Any], result: list[torch.Tensor]) -> BytePSWork:
        self._flying.add(handle)
        work = BytePSWork([handle], result, self._timeout)
        if self._together is not None:
            self._together.append(work)
        return work

    def _into(self, kind: int, tensor: torch.Tensor, output: torch.Tensor, after: Any = None, **options: Any) -> Part:
        """A collective of `tensor` into `output`."""
        check_pair(tensor, output)
        options["timeout"] = self._op_timeout
        return into_output(kind, tensor, output, self._name(), self.process_set, 0, after, options)

    def _into_list(self, kind: int, tensor: torch.Tensor, outputs: list[torch.Tensor], **options: Any) -> Part:
        """A collective of the elements of `tensor`; those that come, from each rank some, fill `outputs`, if there are
        any."""
        check_dense(tensor)
        elements, room = own_elements(tensor), sum(output.numel() for output in outputs)
        if room != 0 and is_device(elements) and all(is_device(output) for output in outputs):
            # Not through the host, where results of sizes that are not known beforehand come.
            whole = outputs[0].new_empty(room, dtype=tensor.dtype)
            return into_list(self._into(kind, elements, whole, **options), outputs)
        options["timeout"] = self._op_timeout
        return into_new(kind, elements, self._name(), self.process_set, 0, fill(outputs), options)

    def _all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> Part:
        return self._into(_native.ALL_REDUCE, tensor, tensor, op=op)

    # Reductions.

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> BytePSWork:
        """Reduces a tensor into itself."""
        tensor, op = _single(tensors), _op(opts, tensors)
        if self.process_set is not global_process_set:
            return self._work(start_part(self._all_reduce(tensor, op)), [tensor])
        check_dense(tensor)
        check_writable(tensor)
        handle = start_push_pull(tensor, tensor, op, self._name(), 0, timeout=self._op_timeout)
        return self._work(handle, [tensor])

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> BytePSWork:
        """Reduces several tensors into themselves, as one operation."""
        op = _op(opts, tensors)
        check_pairs(tensors, tensors)
        parts = [self._all_reduce(tensor, op) for tensor in tensors]
        return self._work(start_group(self._kind, parts), list(tensors))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> BytePSWork:
        """Reduces a tensor into the root's; the others' keep their values."""
        tensor = _single(tensors)
        options: dict[str, Any] = {"op": _op(opts, tensors), "root": self._rank_in_job("reduce", "root", opts.rootRank)}
        if self._rank == opts.rootRank:
            part = self._into(_native.REDUCE, tensor, tensor, **options)
        else:
            check_dense(tensor)
            name, options["timeout"] = self._name(), self._op_timeout
            part = into_new(_native.REDUCE, tensor, name, self.process_set, 0, lambda *none: None, options)
        return self._work(start_part(part), [tensor])

    def _check_scattered(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        if tensor.numel() != output.numel() * self._size:
            raise ValueError(f"the input has {tensor.numel()} elements; {self._size} ranks get {output.numel()} each")
        check_pair(tensor, output)

    def _reduce_scatter_part(self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp) -> Part:
        self._check_scattered(tensor, output)
        elements = own_elements(tensor)
        target, after = free_of(elements, output)
        return self._into(_native.REDUCE_SCATTER, elements, target, after, op=op)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> BytePSWork:
        """The reduction of a tensor that is cut into equal parts, one for each rank."""
        return self._work(start_part(self._reduce_scatter_part(output, tensor, _op(opts, [tensor]))), [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> BytePSWork:
        """reduce_scatter_single() of several, as one operation."""
        op = _op(opts, input_tensors)
        check_pairs(input_tensors, output_tensors, self._check_scattered)
        parts = [self._reduce_scatter_part(output, one, op) for output, one in zip(output_tensors, input_tensors)]
        return self._work(start_group(self._kind, parts), list(output_tensors))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
    ) -> BytePSWork:
        """The reduction of each rank's list; each rank keeps its part. Parts may have different shapes."""
        output, inputs = _single(output_tensors), list(input_tensors[0])
        self._check_count("inputs", inputs)
        if output.numel() != inputs[self._rank].numel():
            raise ValueError(f"the output has {output.numel()} elements, its part {inputs[self._rank].numel()}")
        whole = torch.cat([own_elements(tensor) for tensor in inputs])
        splits = [tensor.numel() for tensor in inputs]
        part = self._into(_native.REDUCE_SCATTER, whole, output, op=_op(opts, inputs), splits=splits)
        return self._work(start_part(part), [output])

    # From one to all, and from all to one.

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> BytePSWork:
        """Copies the root's tensor into every rank's."""
        tensor = _single(tensors)
        check_dense(tensor)
        check_writable(tensor)
        root, name = self._rank_in_job("broadcast", "root", opts.rootRank), self._name()
        handle = start_broadcast(tensor, tensor, root, name, self.process_set, 0, timeout=self._op_timeout)
        return self._work(handle, [tensor])

    def gather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> BytePSWork:
        """Every rank's tensor into the root's list; they may have different shapes."""
        tensor, root = _single(input_tensors), self._rank_in_job("gather", "root", opts.rootRank)
        outputs = list(output_tensors[0]) if self._rank == opts.rootRank else []
        if self._rank == opts.rootRank:
            self._check_count("outputs", outputs)
        part = self._into_list(_native.GATHER, tensor, outputs, root=root)
        return self._work(start_part(part), outputs)

    def scatter(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> BytePSWork:
        """The root's list, one tensor to each."""
        output, root = _single(output_tensors), self._rank_in_job("scatter", "root", opts.rootRank)
        check_dense(output)
        if self._rank != opts.rootRank:
            nothing = torch.empty(0, dtype=output.dtype, device=output.device)
            part = self._into(_native.SCATTER, nothing, output, root=root)
        else:
            inputs = list(input_tensors[0])
            self._check_count("inputs", inputs)
            whole = torch.cat([own_elements(tensor) for tensor in inputs])
            part = self._into(_native.SCATTER, whole, output, root=root, splits=[tensor.numel() for tensor in inputs])
        return self._work(start_part(check_rows(part, output, None)), [output])

    # From all to all.

    def allgather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> BytePSWork:
        """Every rank's tensor into a list; they may have different shapes, which the list has, too."""
        outputs = list(output_tensors[0])
        self._check_count("outputs", outputs)
        part = self._into_list(_native.ALL_GATHER, _single(input_tensors), outputs)
        return self._work(start_part(part), outputs)

    def allgather_coalesced(
        self,
        output_tensor_lists: Sequence[Sequence[torch.Tensor]],
        input_tensors: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> BytePSWork:
        """allgather() of several, as one operation: a list for each rank, of one output for each input."""
        if any(len(outputs) != len(input_tensors) for outputs in output_tensor_lists):
            counts = [len(outputs) for outputs in output_tensor_lists]
            raise ValueError(f"{len(input_tensors)} inputs were given, and lists of {counts} outputs")
        pairs = [(tensor, list(outputs)) for tensor, outputs in zip(input_tensors, zip(*output_tensor_lists))]
        for tensor, outputs in pairs:
            check_dense(tensor)
            self._check_count("outputs", outputs)
        parts = [self._into_list(_native.ALL_GATHER, tensor, outputs) for tensor, outputs in pairs]
        return self._work(start_group(self._kind, parts), [one for outputs in output_tensor_lists for one in outputs])

    def _check_gathered(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        if output.numel() != tensor.numel() * self._size:
            raise ValueError(f"the output has {output.numel()} elements; {self._size} ranks have {tensor.numel()} each")
        check_pair(tensor, output)

    def _all_gather_part(self, output: torch.Tensor, tensor: torch.Tensor) -> Part:
        self._check_gathered(tensor, output)
        elements = own_elements(tensor)
        target, after = free_of(elements, output)
        return self._into(_native.ALL_GATHER, elements, target, after)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> BytePSWork:
        """Every rank's tensor into one, one behind the other."""
        return self._work(start_part(self._all_gather_part(output, tensor)), [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> BytePSWork:
        """all_gather_single() of several, as one operation."""
        check_pairs(input_tensors, output_tensors, self._check_gathered)
        parts = [self._all_gather_part(output, tensor) for output, tensor in zip(output_tensors, input_tensors)]
        return self._work(start_group(self._kind, parts), list(output_tensors))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
    ) -> BytePSWork:
        """From each rank to each rank its rows: the splits say how many, else they are equal."""
        check_dense(tensor)
        splits = check_splits(tensor, list(input_splits) if input_splits else None, self.process_set)
        target, after = free_of(tensor, output)
        options = {} if splits is None else {"splits": splits}
        part = self._into(_native.ALL_TO_ALL, tensor, target, after, **options)
        return self._work(start_part(check_rows(part, output, list(output_splits or ()))), [output])

    alltoall_base = all_to_all_single

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> BytePSWork:
        """From each rank to each rank a tensor; they may have different shapes."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        self._check_count("outputs", outputs)
        self._check_count("inputs", inputs)
        whole = torch.cat([own_elements(tensor) for tensor in inputs])
        splits = [tensor.numel() for tensor in inputs]
        return self._work(start_part(self._into_list(_native.ALL_TO_ALL, whole, outputs, splits=splits)), outputs)

    def _check_count(self, what: str, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{len(tensors)} {what} were given for {self._size} ranks")
        for tensor in tensors:
            check_dense(tensor)

    # From one to one.

    def _message(self, kind: int, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> BytePSWork:
        tensor = _single(tensors)
        check_dense(tensor)
        if kind == _native.RECEIVE:
            check_writable(tensor)
        if not 0 <= tag < 1 << 31:
            raise ValueError(f"tag is {tag}; it must be one of 0 to {(1 << 31) - 1}")
        what = ("send", "destination") if kind == _native.SEND else ("recv", "source")
        options = {"peer": self._rank_in_job(*what, peer), "tag": self._first_tag + tag, "timeout": self._op_timeout}
        if kind == _native.SEND:
            part = into_new(kind, tensor, "", self.process_set, 0, lambda *none: None, options)
        else:
            into = into_output(kind, tensor, tensor, None, self.process_set, 0, None, options)
            part = check_rows(into, tensor, None)
        return self._work(start_part(part), [tensor])

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> BytePSWork:
        """Sends a tensor to a rank of the group that receives one of the same tag, shape and dtype."""
        return self._message(_native.SEND, tensors, dst, tag)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> BytePSWork:
        """Receives a tensor from a rank of the group."""
        return self._message(_native.RECEIVE, tensors, src, tag)

    def recv_anysource(self, *arguments: Any, **keywords: Any) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError("the backend byteps receives from a rank that is named: give src")

    # Barriers.

    def barrier(self, opts: Any = None) -> BytePSWork:
        """Ends when every rank has called it."""
        return self._work(start_part(self._barrier(self._op_timeout)), [])

    def _barrier(self, timeout: float | None) -> Part:
        name = self._name()
        operation = _native.Collective(_native.BARRIER, name, process_set=self.process_set.native(), timeout=timeout)
        return Part(name, operation, None, lambda *none: None)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits for every rank. The error names all that are missing, on each rank that waits, whether or not
        `wait_all_ranks` asks for it: no rank is waited for before the others."""
        del wait_all_ranks
        start_part(self._barrier((timeout or self._timeout).total_seconds())).synchronize()


@functools.cache
def _leave_alone() -> None:
    """From here on torch.compile does not look into the operations: a compiled program may call them, as DDP's backward
    pass does. It imports the compiler, which takes a second, as DDP's constructor does."""
    for kind in (ProcessGroupBytePS, BytePSWork):
        for name, method in list(vars(kind).items()):
            if isinstance(method, FunctionType) and (not name.startswith("_") or name in _CALLED_FROM_CPP):
                setattr(kind, name, not_compiled(method))


_CALLED_FROM_CPP = ("_allgather_base", "_end_coalescing", "_reduce_scatter_base", "_start_coalescing")
