"""alltoall: from each rank to each rank its rows. (A row is what the first dimension counts.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps import _native
from byteps.arguments import whole_number
from byteps.session import current_session
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.submission import into_new, operation_name, start_part
from byteps.torch.wire_buffer import check_dense

import torch

Splits = Sequence[int] | torch.Tensor | None
_Exchanged = tuple[torch.Tensor, torch.Tensor]


def _numbers(splits: Splits) -> list[int] | None:
    """Raises TypeError, ValueError."""
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1 or splits.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"splits is a {splits.dtype} of shape {tuple(splits.shape)}; it must be one row of int32 or int64"
            )
        return [int(rows) for rows in splits.tolist()]
    return [whole_number("splits", rows) for rows in splits]


def check_splits(tensor: torch.Tensor, splits: Splits, process_set: ProcessSet) -> list[int] | None:
    """How many rows go to each rank; None: equal numbers. Ranks may have different ones, so what is wrong with them is
    said before the operation has its number, which the other ranks' meets. Raises TypeError, ValueError."""
    current_session()
    given, ranks = _numbers(splits), process_set.size() or 1
    rows = tensor.shape[0] if tensor.dim() > 0 else 1
    if given is None:
        if rows % ranks != 0:
            raise ValueError(f"the tensor's {rows} rows cannot be divided by {ranks} ranks: give splits")
    elif len(given) != ranks:
        raise ValueError(f"there are {len(given)} splits for {ranks} ranks; each rank has one")
    elif min(given) < 0 or sum(given) != rows:
        raise ValueError(f"the splits, {given}, must not be negative, and add up to the tensor's {rows} rows")
    return given


def _start(
    tensor: torch.Tensor, splits: Splits, name: str, process_set: ProcessSet, priority: int
) -> CollectiveHandle[_Exchanged]:
    given = _numbers(splits)
    dtype, device = torch.int32, torch.device("cpu")
    if isinstance(splits, torch.Tensor):
        dtype, device = splits.dtype, splits.device

    def finish(received: torch.Tensor, rows: list[int]) -> _Exchanged:
        return received, torch.tensor(rows, dtype=dtype, device=device)

    options = {} if given is None else {"splits": given}
    return start_part(into_new(_native.ALL_TO_ALL, tensor, name, process_set, priority, finish, options))


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> CollectiveHandle[_Exchanged]:
    """Starts an alltoall, and does not block. synchronize() returns the tensor and how many rows came from each rank,
    as Horovod's does. The tensor must not change until the operation has ended. Arguments and errors are alltoall()'s;
    what goes wrong on the way is raised by synchronize()."""
    check_dense(tensor)
    check_process_set(process_set)
    check_splits(tensor, splits, process_set)
    return _start(tensor, splits, operation_name("alltoall", name, process_set, priority), process_set, priority)


class _Alltoall(torch.autograd.Function):
    """alltoall for autograd: gradients go back to where the rows came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Splits, name: str, process_set: ProcessSet, priority: int
    ) -> _Exchanged:
        received, rows = _start(tensor, splits, name, process_set, priority).synchronize()
        ctx.arguments = (rows, name, process_set, priority)
        ctx.shape = tensor.shape
        ctx.mark_non_differentiable(rows)
        return received, rows

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, name, *others = ctx.arguments
        back, _ = _Alltoall.apply(gradients[0], rows, f"{name}.gradient", *others)
        return back.view(ctx.shape), None, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Any:
    """Sends each rank its rows of the tensor, and waits for those of all ranks. Differentiable: gradients go the way
    back.

    Args:
        tensor: the first dimension may differ between ranks; the others and the dtype are the same.
        splits: how many rows go to each rank: numbers, or a tensor of int32 or int64, which add up to the tensor's
            rows. None: equal numbers.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        process_set: the ranks that take part; this rank is one of them.
        priority: larger is sooner.

    Returns:
        The rows for this rank, those of rank 0 first. With splits: these, and how many came from each rank: a tensor of
        the dtype and device of `splits`, if that is a tensor, else of int32.

    Raises:
        BytePSError: see synchronize().
        ValueError: before init(), splits that do not add up or are not as many as ranks, rows that cannot be split
            equally, a name that is in flight already, a dtype that cannot be sent, a process set that the job does not
            know or that this rank is not in.
        TypeError: not a tensor, or an argument of a wrong type.
    """
    check_dense(tensor)
    check_process_set(process_set)
    check_splits(tensor, splits, process_set)
    name = operation_name("alltoall", name, process_set, priority)
    received, rows = _Alltoall.apply(tensor, splits, name, process_set, priority)
    return received if splits is None else (received, rows)
