"""Several reductions as one: all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.reduce_op import ReduceOp, Sum
from byteps.torch.allreduce import allreduce_part, check_differentiable, reduction_op
from byteps.torch.collective_handle import GroupHandle
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.device_streams import new_output
from byteps.torch.handle import synchronize
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.scaling import check_scaling
from byteps.torch.submission import operation_name, start_group
from byteps.torch.wire_buffer import check_dense, check_writable

import torch

_KIND = "grouped_allreduce"


def checked_list(tensors: Sequence[torch.Tensor], in_place: bool = False) -> list[torch.Tensor]:
    """The argument `tensors` of a grouped operation. Raises TypeError, ValueError."""
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"tensors is a {type(tensors).__name__}; it must be a list of tensors")
    for tensor in tensors:
        check_dense(tensor)
        if in_place:
            check_writable(tensor)
    return list(tensors)


def check_group_scaling(op: ReduceOp, tensors: Sequence[torch.Tensor], factors: tuple[Any, Any]) -> tuple[float, float]:
    """check_scaling() of each tensor of a group. Raises TypeError, ValueError."""
    checked = check_scaling(Sum, torch.float32, factors)
    for tensor in tensors:
        check_scaling(op, tensor.dtype, checked)
    return checked


def member_names(name: str, count: int) -> list[str]:
    """The names of a group's operations. Not with how many they are: groups that differ are to meet, and be told."""
    return [f"{name}.{index + 1}" for index in range(count)]


def _start(
    tensors: list[torch.Tensor],
    outputs: list[torch.Tensor],
    op: ReduceOp,
    name: str,
    factors: tuple[float, float],
    process_set: ProcessSet,
    priority: int,
) -> GroupHandle:
    parts = [
        allreduce_part(tensor, output, op, member, factors, process_set, priority)
        for tensor, output, member in zip(tensors, outputs, member_names(name, len(tensors)))
    ]
    return start_group(name, parts)


def _outputs(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [new_output(tensor) for tensor in tensors]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> GroupHandle:
    """Starts a reduction of each tensor into a new one, and does not block; as allreduce_async for each. synchronize()
    returns the list, or raises what goes wrong on the way."""
    check_process_set(process_set)
    op = reduction_op(average, op)
    given = checked_list(tensors)
    factors = check_group_scaling(op, given, (prescale_factor, postscale_factor))
    return _start(
        given, _outputs(given), op, operation_name(_KIND, name, process_set, priority), factors, process_set, priority
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> GroupHandle:
    """Starts a reduction of each tensor into itself, and does not block; as allreduce_async_ for each. synchronize()
    returns the list, or raises what goes wrong on the way."""
    check_process_set(process_set)
    op = reduction_op(average, op)
    given = checked_list(tensors, in_place=True)
    factors = check_group_scaling(op, given, (prescale_factor, postscale_factor))
    return _start(given, given, op, operation_name(_KIND, name, process_set, priority), factors, process_set, priority)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """Reduces each tensor into itself, waits for all, and returns them. Raises what grouped_allreduce() does."""
    return synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set, priority)
    )


class _GroupedAllreduce(torch.autograd.Function):
    """grouped_allreduce for autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        op: ReduceOp,
        name: str,
        factors: tuple[float, float],
        process_set: ProcessSet,
        priority: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (op, name, factors, process_set, priority)
        given = list(tensors)
        return tuple(synchronize(_start(given, _outputs(given), op, name, factors, process_set, priority)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        op, name, *others = ctx.arguments
        check_differentiable(op, "grouped_allreduce")
        return (*[None] * 5, *_GroupedAllreduce.apply(op, name + ".gradient", *others, *gradients))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """Reduces each tensor over all workers into a new one, and waits for all. Differentiable for Sum and Average.

    Args:
        tensors: a list, the same number, shapes and dtypes on all ranks; other numbers are an error of all ranks. An
            empty list takes no part.
        name: of the group; None: numbered.
        average, compression, op, prescale_factor, postscale_factor, process_set, priority: as allreduce().

    Returns:
        The results, in the order of the tensors.

    Raises:
        What allreduce() raises. If one operation fails, the others are given up, and its error is raised.
    """
    check_compression(compression)
    check_process_set(process_set)
    op = reduction_op(average, op)
    given = checked_list(tensors)
    factors = check_group_scaling(op, given, (prescale_factor, postscale_factor))
    compressed = [compression.compress(tensor) for tensor in given]  # may fail, and is then to have no number
    name = operation_name(_KIND, name, process_set, priority)
    sent = [tensor for tensor, _ in compressed]
    if not sent:
        return []
    results = _GroupedAllreduce.apply(op, name, factors, process_set, priority, *sent)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed)]
