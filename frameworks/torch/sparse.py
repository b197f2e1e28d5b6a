"""Reduction of sparse tensors, such as the gradients of torch.nn.Embedding(sparse=True).

Each rank's rows go to all ranks, so the bytes are those of the rows that have values, or those of the whole tensor
where that is less. The bits are those of a reduction of whole tensors, the same on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from byteps import _native
from byteps.arguments import priority_number
from byteps.reduce_op import Average, ReduceOp, Sum, choose_op
from byteps.session import current_session
from byteps.speed import SPEED
from byteps.torch import device_streams
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.compression import Compression, Compressor
from byteps.torch.device_streams import (
    DeviceResults,
    HostCopies,
    HostResult,
    check_not_capturing,
    is_device,
    row_major_copy,
)
from byteps.torch.dtypes import dtype_code
from byteps.torch.late_request import LateRequest
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.submission import operation_name

import torch


class SparseHandle(CollectiveHandle[torch.Tensor]):
    """What sparse_allreduce_async returns: call it, as in Horovod, or give it to synchronize()."""

    def __call__(self) -> torch.Tensor:
        """As synchronize()."""
        return self.synchronize()


def check_sparse_op(op: ReduceOp) -> None:
    """Raises NotImplementedError for a reduction that is not defined for rows that only some ranks have."""
    if op not in (Sum, Average):
        raise NotImplementedError(f"sparse tensors cannot be reduced with op={op.name}; Sum and Average can")


def _places(indices: torch.Tensor, extents: torch.Size) -> torch.Tensor:
    """Of each index (a column of `indices`) the number of its row, where rows of all dimensions are counted through."""
    places = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    for of_dimension, extent in zip(indices, extents):
        places = places * extent + of_dimension
    return places


def _indices(places: torch.Tensor, extents: torch.Size) -> torch.Tensor:
    """The inverse of _places."""
    found = torch.empty((len(extents), len(places)), dtype=torch.int64, device=places.device)
    for dimension in range(len(extents) - 1, -1, -1):
        found[dimension] = places % extents[dimension]
        places = torch.div(places, extents[dimension], rounding_mode="floor")
    return found


def _taken(result: _native.Result, dtype: torch.dtype) -> torch.Tensor:
    """A result of the library as a tensor, whose storage holds it."""
    if len(result) == 0:
        return torch.empty(result.shape or (0,), dtype=dtype, device="cpu")
    return torch.frombuffer(result, dtype=dtype).view(result.shape)


def give_up_sparse_allreduce(
    name: str, dtype: torch.dtype, shape: Sequence[int], op: ReduceOp, process_set: ProcessSet, reason: str
) -> _native.Request:
    """Uses the next round of the name up without taking part: it fails on all ranks, here at once. `dtype`, `shape`: of
    the whole tensor that would have been sent, whose rows are those of its first dimension."""
    session = current_session()
    return session.native.give_up_sparse_all_reduce(name, dtype_code(dtype), shape, op, process_set.native(), reason)


def start_sparse_allreduce(
    tensor: torch.Tensor,
    op: ReduceOp,
    name: str,
    process_set: ProcessSet,
    priority: int,
    compression: type[Compressor] = Compression.none,
) -> SparseHandle:
    """Starts the reduction of a sparse tensor into a new one, which is coalesced."""
    check_sparse_op(op)
    # Not coalesced: the library adds up what has one index, too.
    values = tensor.detach()._values()
    on_gpu = device_streams.STREAMS.index(values) if is_device(values) else None
    if on_gpu is not None:
        check_not_capturing(on_gpu, name)
    values, context = compression.compress(values)
    shape, device, kind = tensor.shape, tensor.device, values.dtype
    extents = shape[: tensor.sparse_dim()]
    places = _places(tensor.detach()._indices(), extents)
    # Integers as everywhere in Horovod's words: truncated, where the library rounds down.
    truncated = op is Average and not (kind.is_floating_point or kind.is_complex)
    session, code, among = current_session(), dtype_code(kind), process_set.native()
    priority = priority_number(priority)

    def start(read: list[torch.Tensor]) -> _native.Request:
        numbers, rows = read
        return session.native.sparse_all_reduce(
            name,
            code,
            (math.prod(extents), *shape[len(extents) :]),
            numbers.data_ptr(),
            rows.data_ptr(),
            len(numbers),
            Sum if truncated else op,
            among,
            priority,
        )

    request: _native.Request | LateRequest
    results: DeviceResults | None = None
    bring: Callable[[torch.Tensor], torch.Tensor]
    if on_gpu is not None:
        like = device_streams.STREAMS.nothing(values)
        # A copy within the GPU: the tensor may be changed at once.
        request = LateRequest(name, HostCopies([places, row_major_copy(values)]), start)
        results = DeviceResults([HostResult(on_gpu)])

        def bring(host: torch.Tensor) -> torch.Tensor:
            return device_streams.STREAMS.from_host(host, like)
    else:
        request = start([places.cpu().contiguous(), values.cpu().contiguous().resolve_conj().resolve_neg()])

        def bring(host: torch.Tensor) -> torch.Tensor:
            return host.to(device)

    count = process_set.size() or 1

    def finish(ended: _native.Request) -> torch.Tensor:
        rows, numbers = ended.result(0), ended.result(1)
        SPEED.record(len(rows) + len(numbers))
        found = _taken(rows, kind)
        if truncated:
            found = found.div(count, rounding_mode="trunc")
        found = compression.decompress(found, context)
        if numbers.shape:
            of_rows = _taken(numbers, torch.int64)
            indices, found = _indices(of_rows, extents), found.view(len(of_rows), *shape[len(extents) :])
        else:  # the whole tensor was less: its rows that are not zero
            whole = found.view(shape).to_sparse(len(extents))
            indices, found = whole._indices(), whole._values()
        indices, found = bring(indices), bring(found)
        return torch.sparse_coo_tensor(
            indices, found, shape, device=found.device, is_coalesced=True, check_invariants=False
        )

    return SparseHandle(name, request, finish, results)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> SparseHandle:
    """Starts a reduction of a sparse tensor over all ranks. Bytes are sent for the rows that have values alone, or,
    where that is less, for the whole tensor. The tensor may be changed at once.

    Args:
        tensor: of layout torch.sparse_coo, the same shape, sparse dimensions and dtype on all ranks; each has the rows
            that it has, or none. Rows that have the same index are added up.
        name: the same on all ranks; None: numbered.
        op: Average or Sum. Averages of integers are truncated towards zero.
        process_set: the ranks that take part; this rank is one of them.
        priority: larger is sooner.

    Returns:
        A handle; calling it, or synchronize(), returns a new sparse tensor, coalesced, with the same bits on all ranks:
        of all rows that any rank has; of the rows that are not zero, where the whole tensor was sent.

    Raises:
        ValueError: before init(), a process set that the job does not know, or a tensor that is not sparse, on
            the device "meta", or of a dtype that cannot be sent.
        TypeError: not a tensor.
        NotImplementedError: another reduction.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"the tensor's layout is {tensor.layout}; it must be torch.sparse_coo")
    if tensor.is_meta:
        raise ValueError('the tensor is on the device "meta": it has no values that could be sent')
    dtype_code(tensor.dtype)
    check_process_set(process_set)
    op = choose_op(op, None)
    check_sparse_op(op)
    return start_sparse_allreduce(
        tensor, op, operation_name("sparse_allreduce", name, process_set, priority), process_set, priority
    )
