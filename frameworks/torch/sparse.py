"""Reduction of sparse tensors, such as the gradients of torch.nn.Embedding(sparse=True).

Each rank's rows go to all ranks, so the bytes are those of the rows that have values, not of the whole. They are summed
in rank order: the same bits on all ranks.
"""

from __future__ import annotations

from typing import Any

from byteps import _native
from byteps.reduce_op import Average, ReduceOp, Sum, choose_op
from byteps.session import current_session
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.compression import Compression, Compressor
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.submission import into_new, operation_name

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


def _places(indices: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Of each index (a row of `indices`) its one number."""
    places = torch.zeros(indices.shape[0], dtype=torch.int64, device=indices.device)
    for dimension in range(indices.shape[1]):
        places = places * shape[dimension] + indices[:, dimension]
    return places


def _summed(indices: torch.Tensor, values: torch.Tensor, counts: list[int], shape: torch.Size) -> torch.Tensor:
    """The sum of the ranks' sparse tensors, which have `counts` rows each of both."""
    wide = torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else values.dtype
    places, inverse = torch.unique(_places(indices, shape), return_inverse=True)
    total = torch.zeros((len(places), *values.shape[1:]), dtype=wide, device=values.device)
    found = torch.empty((len(places), indices.shape[1]), dtype=torch.int64, device=indices.device)
    found[inverse] = indices
    # One rank after the other, none of which has a place twice: that is one order.
    for into, part in zip(inverse.split(counts), values.split(counts)):
        total.index_add_(0, into, part.to(wide))
    return torch.sparse_coo_tensor(found.t(), total.to(values.dtype), shape, is_coalesced=True, check_invariants=False)


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
    whole = tensor.detach().coalesce()
    values, context = compression.compress(whole.values())
    indices = whole.indices().t().contiguous()

    def keep(gathered: torch.Tensor, rows: list[int]) -> Any:
        return gathered, rows

    parts = [
        into_new(_native.ALL_GATHER, each, f"{name}.{kind}", process_set, priority, keep)
        for kind, each in (("indices", indices), ("values", values))
    ]
    request = current_session().native.group([part.operation for part in parts], [part.held for part in parts])
    shape, count = tensor.shape, process_set.size() or 1

    def finish(ended: _native.Request) -> torch.Tensor:
        (all_indices, rows), (all_values, _) = (part.finish(ended, index) for index, part in enumerate(parts))
        total = _summed(all_indices, compression.decompress(all_values, context), rows, shape)
        return total / count if op is Average else total

    return SparseHandle(name, request, finish)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> SparseHandle:
    """Starts a reduction of a sparse tensor over all ranks. Bytes are sent for the rows that have values alone.

    Args:
        tensor: of layout torch.sparse_coo, the same shape, sparse dimensions and dtype on all ranks; each has the rows
            that it has, or none.
        name: the same on all ranks; None: numbered.
        op: Average or Sum.
        process_set: the ranks that take part; this rank is one of them.
        priority: larger is sooner.

    Returns:
        A handle; calling it, or synchronize(), returns a new sparse tensor, coalesced, with the same bits on all ranks.

    Raises:
        ValueError: before init(), a process set that the job does not know, or a tensor that is not sparse.
        TypeError: not a tensor.
        NotImplementedError: another reduction.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"the tensor's layout is {tensor.layout}; it must be torch.sparse_coo")
    check_process_set(process_set)
    op = choose_op(op, None)
    return start_sparse_allreduce(
        tensor, op, operation_name("sparse_allreduce", name, process_set), process_set, priority
    )
