"""reducescatter: of a reduction over all ranks, to each rank its rows. (A row is what the first dimension counts.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps import _native
from byteps.reduce_op import Average, ReduceOp, Sum, choose_op
from byteps.torch.allreduce import check_differentiable
from byteps.torch.collective_handle import CollectiveHandle, GroupHandle
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.grouped_allreduce import check_group_scaling, checked_list, member_names
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.scaling import Reduction, check_scaling
from byteps.torch.submission import Part, into_new, operation_name, run_parts, start_group, start_part
from byteps.torch.wire_buffer import check_dense

import torch

_Factors = tuple[float, float]
# A reduced part, and how many rows each rank has got.
_Scattered = tuple[torch.Tensor, list[int]]


def _part(
    tensor: torch.Tensor,
    rows: Sequence[int] | None,
    op: ReduceOp,
    factors: _Factors,
    name: str,
    process_set: ProcessSet,
    priority: int,
    with_rows: bool,
) -> Part:
    """The operation. `rows`: of each rank; None: as even as possible, the first ranks have one more. Its output is the
    tensor, or with_rows a _Scattered."""
    reduction = Reduction(op, tensor.dtype, factors, process_set)
    options = reduction.options if rows is None else {**reduction.options, "splits": rows}

    def finish(reduced: torch.Tensor, given: list[int]) -> Any:
        if reduction.after is not None:
            reduction.after(reduced)
        return (reduced, given) if with_rows else reduced

    return into_new(_native.REDUCE_SCATTER, tensor, name, process_set, priority, finish, options)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> CollectiveHandle[torch.Tensor]:
    """Starts a reducescatter, and does not block. The tensor must not change until the operation has ended. Arguments
    and errors are reducescatter()'s, without compression; what goes wrong on the way is raised by synchronize()."""
    check_dense(tensor)
    check_process_set(process_set)
    op = choose_op(op, None)
    factors = check_scaling(op, tensor.dtype, (prescale_factor, postscale_factor))
    name = operation_name("reducescatter", name, process_set, priority)
    return start_part(_part(tensor, None, op, factors, name, process_set, priority, with_rows=False))


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> GroupHandle:
    """Starts a reducescatter of each tensor, all of them or none, and does not block; as reducescatter_async for each.
    synchronize() returns the list, or raises what goes wrong on the way."""
    given = checked_list(tensors)
    check_process_set(process_set)
    op = choose_op(op, None)
    factors = check_group_scaling(op, given, (prescale_factor, postscale_factor))
    name = operation_name("grouped_reducescatter", name, process_set, priority)
    parts = [
        _part(tensor, None, op, factors, each, process_set, priority, with_rows=False)
        for tensor, each in zip(given, member_names(name, len(given)))
    ]
    return start_group(name, parts)


class _Reducescatter(torch.autograd.Function):
    """reducescatter for autograd: every rank's input reached the rows of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Sequence[Sequence[int] | None],
        op: ReduceOp,
        factors: _Factors,
        names: list[str],
        grouped: bool,
        process_set: ProcessSet,
        priority: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        parts = [
            _part(tensor, each_rows, op, factors, name, process_set, priority, with_rows=True)
            for tensor, each_rows, name in zip(tensors, rows, names)
        ]
        found: list[_Scattered] = run_parts(parts, grouped)
        ctx.arguments = (op, factors, names, grouped, process_set, priority)
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(reduced for reduced, _ in found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from byteps.torch.allgather import apply_allgather

        op, factors, names, grouped, process_set, priority = ctx.arguments
        check_differentiable(op, "reducescatter")
        factor = factors[0] * factors[1] * (process_set.size() if op is Sum else 1)
        scaled = [gradient if factor == 1.0 else gradient * factor for gradient in gradients]
        whole = apply_allgather(scaled, [f"{name}.gradient" for name in names], grouped, process_set, priority)
        return (*[None] * 7, *(each.view(shape) for each, shape in zip(whole, ctx.shapes)))


def apply_reducescatter(
    tensors: Sequence[torch.Tensor],
    rows: Sequence[Sequence[int] | None],
    op: ReduceOp,
    factors: _Factors,
    names: list[str],
    grouped: bool,
    process_set: ProcessSet,
    priority: int,
) -> tuple[torch.Tensor, ...]:
    """Differentiable reductions as one operation; not `grouped`: the only one. `rows`: of each tensor those of each
    rank; None: as even as possible."""
    result: tuple[torch.Tensor, ...] = _Reducescatter.apply(
        rows, op, factors, names, grouped, process_set, priority, *tensors
    )
    return result


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks, keeps this rank's rows of the result, and waits for them.

    The rows are as even as possible; where they are not, the first ranks have one more. Differentiable for Sum and
    Average: as in Horovod, the gradient of the average is the allgather of the ranks' gradients, that of the sum as
    many times that as there are ranks.

    Args:
        tensor: the same shape and dtype on all ranks.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        compression: Compression.none, Compression.fp16 or Compression.bf16.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part; this rank is one of them.
        prescale_factor: what the tensor is multiplied by before it is sent.
        postscale_factor: what the result is multiplied by.
        priority: larger is sooner.

    Raises:
        BytePSError: see synchronize().
        ValueError: before init(), a name that is in flight already, a dtype that cannot be sent or reduced, a process
            set that the job does not know or that this rank is not in.
        TypeError: not a tensor, or an argument of a wrong type.
        NotImplementedError: Adasum.
    """
    check_dense(tensor)
    check_compression(compression)
    check_process_set(process_set)
    op = choose_op(op, None)
    factors = check_scaling(op, tensor.dtype, (prescale_factor, postscale_factor))
    sent, context = compression.compress(tensor)  # may fail, and is then to have no number
    name = operation_name("reducescatter", name, process_set, priority)
    (reduced,) = apply_reducescatter([sent], [None], op, factors, [name], False, process_set, priority)
    return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> list[torch.Tensor]:
    """reducescatter() of each tensor of a list, as one operation, and waits for it: if one fails, all do. The same
    number of tensors on all ranks. Differentiable. Errors are reducescatter()'s."""
    given = checked_list(tensors)
    check_compression(compression)
    check_process_set(process_set)
    op = choose_op(op, None)
    if not given:
        return []
    factors = check_group_scaling(op, given, (prescale_factor, postscale_factor))
    compressed = [compression.compress(tensor) for tensor in given]  # may fail, and is then to have no number
    name = operation_name("grouped_reducescatter", name, process_set, priority)
    sent = [tensor for tensor, _ in compressed]
    names = member_names(name, len(sent))
    reduced = apply_reducescatter(sent, [None] * len(sent), op, factors, names, True, process_set, priority)
    return [compression.decompress(each, context) for each, (_, context) in zip(reduced, compressed)]
