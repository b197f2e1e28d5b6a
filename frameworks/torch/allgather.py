"""allgather: the rows of all ranks, to all. (A row is what the first dimension counts.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps import _native
from byteps.reduce_op import Average
from byteps.torch.collective_handle import CollectiveHandle, GroupHandle
from byteps.torch.grouped_allreduce import checked_list, member_names
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.reducescatter import apply_reducescatter
from byteps.torch.submission import Part, into_new, operation_name, run_parts, start_group, start_part
from byteps.torch.wire_buffer import check_dense

import torch

# A gathered tensor, and how many rows of it each rank gave.
_Gathered = tuple[torch.Tensor, list[int]]


def _part(tensor: torch.Tensor, name: str, process_set: ProcessSet, priority: int, with_rows: bool) -> Part:
    """The operation; its output is the tensor, or with_rows a _Gathered."""

    def finish(gathered: torch.Tensor, rows: list[int]) -> Any:
        return (gathered, rows) if with_rows else gathered

    return into_new(_native.ALL_GATHER, tensor, name, process_set, priority, finish)


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> CollectiveHandle[torch.Tensor]:
    """Starts an allgather, and does not block. The tensor must not change until the operation has ended. Arguments and
    errors are allgather()'s; what goes wrong on the way is raised by synchronize()."""
    check_dense(tensor)
    check_process_set(process_set)
    name = operation_name("allgather", name, process_set, priority)
    return start_part(_part(tensor, name, process_set, priority, with_rows=False))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> GroupHandle:
    """Starts an allgather of each tensor, all of them or none, and does not block. synchronize() returns the list.
    Arguments and errors are grouped_allgather()'s; what goes wrong on the way is raised by synchronize()."""
    given = checked_list(tensors)
    check_process_set(process_set)
    name = operation_name("grouped_allgather", name, process_set, priority)
    names = member_names(name, len(given))
    return start_group(name, [_part(one, each, process_set, priority, False) for one, each in zip(given, names)])


class _Allgather(torch.autograd.Function):
    """allgather for autograd: each rank's rows get the average of the gradients that all ranks have for them."""

    @staticmethod
    def forward(
        ctx: Any, names: list[str], grouped: bool, process_set: ProcessSet, priority: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        parts = [_part(tensor, name, process_set, priority, True) for tensor, name in zip(tensors, names)]
        found: list[_Gathered] = run_parts(parts, grouped)
        ctx.arguments = (names, grouped, process_set, priority)
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.rows = [rows for _, rows in found]
        return tuple(gathered for gathered, _ in found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        names, grouped, process_set, priority = ctx.arguments
        names = [f"{name}.gradient" for name in names]
        mine = apply_reducescatter(gradients, ctx.rows, Average, (1.0, 1.0), names, grouped, process_set, priority)
        return (*[None] * 4, *(each.view(shape) for each, shape in zip(mine, ctx.shapes)))


def apply_allgather(
    tensors: Sequence[torch.Tensor], names: list[str], grouped: bool, process_set: ProcessSet, priority: int
) -> tuple[torch.Tensor, ...]:
    """Differentiable gathers as one operation; not `grouped`: the only one."""
    result: tuple[torch.Tensor, ...] = _Allgather.apply(names, grouped, process_set, priority, *tensors)
    return result


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Puts the tensors of all ranks one behind the other, by rank, and waits for the result. Differentiable: as in
    Horovod, the gradient is the average of the ranks' gradients of this rank's rows, which suits a loss that is
    averaged over ranks.

    Args:
        tensor: the first dimension may differ between ranks; the others and the dtype are the same. A scalar is a row.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        process_set: the ranks that take part; this rank is one of them.
        priority: larger is sooner.

    Returns:
        A new tensor of as many rows as all have together.

    Raises:
        BytePSError: see synchronize().
        ValueError: before init(), a name that is in flight already, a dtype that cannot be sent, a process set that the
            job does not know or that this rank is not in.
        TypeError: not a tensor, or an argument of a wrong type.
    """
    check_dense(tensor)
    check_process_set(process_set)
    name = operation_name("allgather", name, process_set, priority)
    return apply_allgather([tensor], [name], False, process_set, priority)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """allgather() of each tensor of a list, as one operation, and waits for it: if one fails, all do. The same number
    of tensors on all ranks. Differentiable. Errors are allgather()'s."""
    given = checked_list(tensors)
    check_process_set(process_set)
    if not given:
        return []
    name = operation_name("grouped_allgather", name, process_set, priority)
    return list(apply_allgather(given, member_names(name, len(given)), True, process_set, priority))
