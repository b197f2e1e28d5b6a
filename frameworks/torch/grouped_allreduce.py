"""Several reductions with one call and one handle: all are accepted, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.reduce_op import ReduceOp
from byteps.torch.allreduce import check_differentiable, operation_name, reduction_op, start_allreduce
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.group_handle import GroupHandle, start_all
from byteps.torch.handle import synchronize
from byteps.torch.process_set import ProcessSet, global_process_set
from byteps.torch.wire_buffer import check_dense, check_writable

import torch

_KIND = "grouped_allreduce"


def _checked(tensors: Sequence[torch.Tensor], in_place: bool) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"tensors is a {type(tensors).__name__}; it must be a list of tensors")
    for tensor in tensors:
        check_dense(tensor)
        if in_place:
            check_writable(tensor)
    return list(tensors)


def _start(
    tensors: list[torch.Tensor],
    outputs: list[torch.Tensor],
    op: ReduceOp,
    name: str,
    factors: tuple[float, float],
    process_set: ProcessSet,
    priority: int,
) -> GroupHandle:
    def start(index: int) -> Any:
        member = f"{name}.{index + 1}of{len(tensors)}"
        return start_allreduce(tensors[index], outputs[index], op, member, *factors, process_set, priority)

    return GroupHandle(name, start_all(start, len(tensors)))


def _outputs(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in tensors]


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
    """Starts a reduction of each tensor into a new one; as allreduce_async for each. synchronize() returns the list."""
    op = reduction_op(average, op)
    given = _checked(tensors, in_place=False)
    factors = (prescale_factor, postscale_factor)
    return _start(given, _outputs(given), op, operation_name(_KIND, name), factors, process_set, priority)


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
    """Starts a reduction of each tensor into itself; as allreduce_async_ for each. synchronize() returns the list."""
    op = reduction_op(average, op)
    given = _checked(tensors, in_place=True)
    factors = (prescale_factor, postscale_factor)
    return _start(given, given, op, operation_name(_KIND, name), factors, process_set, priority)


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
    """Reduces each tensor into itself and returns them."""
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
        tensors: a list, the same number, shapes and dtypes on all ranks.
        name: of the group; None: numbered.
        average, compression, op, prescale_factor, postscale_factor, process_set, priority: as allreduce().

    Returns:
        The results, in the order of the tensors.

    Raises:
        What allreduce() raises. If one operation fails, the others are waited for, and the first error is raised.
    """
    check_compression(compression)
    op = reduction_op(average, op)
    given = _checked(tensors, in_place=False)
    name = operation_name(_KIND, name)
    compressed = [compression.compress(tensor) for tensor in given]
    factors = (prescale_factor, postscale_factor)
    sent = [tensor for tensor, _ in compressed]
    if not sent:
        return []
    results = _GroupedAllreduce.apply(op, name, factors, process_set, priority, *sent)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed)]
