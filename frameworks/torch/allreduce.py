"""The reductions in Horovod's words: allreduce, in place and not, blocking and asynchronous.

They do what push_pull does, among the ranks of a process set, and scale before and after. The average of integers is
truncated towards zero, as in Horovod; push_pull rounds it down. Names are of their own: an allreduce and a broadcast or
push_pull may share one.
"""

from __future__ import annotations

from typing import Any

from byteps import _native
from byteps.reduce_op import Average, ReduceOp, Sum, choose_op
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.device_streams import new_output
from byteps.torch.handle import Handle, synchronize
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.scaling import Reduction, check_scaling
from byteps.torch.submission import Part, into_output, operation_name, start_part, start_push_pull
from byteps.torch.wire_buffer import check_dense, check_writable

import torch


def reduction_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The reduction that the two arguments ask for; with neither it is the average.

    Raises:
        ValueError: both are given, or `op` is no reduction.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    return choose_op(op, average, adasum=True)


def allreduce_part(
    tensor: torch.Tensor,
    output: torch.Tensor,
    op: ReduceOp,
    name: str,
    factors: tuple[float, float],
    process_set: ProcessSet,
    priority: int,
) -> Part:
    """The reduction of `tensor` into `output`, which is `tensor` itself or other memory, as a part of a group."""
    reduction = Reduction(op, tensor.dtype, factors, process_set)
    return into_output(
        _native.ALL_REDUCE, tensor, output, name, process_set, priority, reduction.after, reduction.options
    )


def start_allreduce(
    tensor: torch.Tensor,
    output: torch.Tensor,
    op: ReduceOp,
    name: str,
    factors: tuple[float, float],
    process_set: ProcessSet,
    priority: int,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts the reduction of `tensor` into `output`, which is `tensor` itself or other memory."""
    native = process_set.native()
    reduction = Reduction(op, tensor.dtype, factors, process_set)
    if native is None and reduction.scale is None:
        return start_push_pull(tensor, output, reduction.op, name, priority, reduction.after)
    return start_part(
        into_output(_native.ALL_REDUCE, tensor, output, name, process_set, priority, reduction.after, reduction.options)
    )


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts a reduction of `tensor` over all workers into a new tensor, and does not block. The tensor must not change
    until the operation has ended. Arguments and errors are allreduce()'s, without compression; what goes wrong on the
    way is raised by synchronize()."""
    check_dense(tensor)
    check_process_set(process_set)
    op = reduction_op(average, op)
    factors = check_scaling(op, tensor.dtype, (prescale_factor, postscale_factor))
    output = new_output(tensor)
    name = operation_name("allreduce", name, process_set, priority)
    return start_allreduce(tensor, output, op, name, factors, process_set, priority)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts a reduction of `tensor` over all workers into itself, and does not block. The tensor must be neither
    changed nor read until the operation has ended. Arguments and errors are allreduce()'s, without compression, and a
    ValueError for a tensor whose elements share memory; what goes wrong on the way is raised by synchronize()."""
    check_dense(tensor)
    check_writable(tensor)
    check_process_set(process_set)
    op = reduction_op(average, op)
    factors = check_scaling(op, tensor.dtype, (prescale_factor, postscale_factor))
    name = operation_name("allreduce", name, process_set, priority)
    return start_allreduce(tensor, tensor, op, name, factors, process_set, priority)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Reduces `tensor` over all workers into itself, waits for it, and returns it; as allreduce, without compression
    and gradient. Raises what allreduce() does, and ValueError for a tensor whose elements share memory."""
    return synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set, priority)
    )


class _Allreduce(torch.autograd.Function):
    """allreduce for autograd: the gradient is the allreduce of the gradients, by the same op and factors."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        op: ReduceOp,
        name: str,
        factors: tuple[float, float],
        process_set: ProcessSet,
        priority: int,
        compression: type[Compressor],
    ) -> torch.Tensor:
        ctx.arguments = (op, name, factors, process_set, priority, compression)
        sent, context = compression.compress(tensor)
        output = new_output(sent)
        handle = start_allreduce(sent, output, op, name, factors, process_set, priority)
        return compression.decompress(synchronize(handle), context)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        op, name, *others = ctx.arguments
        check_differentiable(op, "allreduce")
        # Applied, not called: the gradient may be differentiated again.
        return (_Allreduce.apply(gradients[0], op, name + ".gradient", *others), *[None] * 6)


def apply_allreduce(
    tensor: torch.Tensor, op: ReduceOp, name: str, process_set: ProcessSet, priority: int
) -> torch.Tensor:
    """A reduction for other operations' gradients, which may be differentiated again."""
    result: torch.Tensor = _Allreduce.apply(tensor, op, name, (1.0, 1.0), process_set, priority, Compression.none)
    return result


def check_differentiable(op: ReduceOp, operation: str) -> None:
    """Raises NotImplementedError for a reduction whose gradient is not that of a sum."""
    if op not in (Sum, Average):
        raise NotImplementedError(f"{operation} with op={op.name} has no gradient; Sum and Average have")


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Reduces `tensor` over all workers into a new tensor, and waits for it.

    Differentiable for Sum and Average: the gradient is the allreduce of the gradients by the same op and factors.

    Args:
        tensor: any shape, the same shape and dtype on all ranks; see byteps.torch.ops for the dtypes.
        average: True for op=Average, False for op=Sum.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        compression: Compression.none, Compression.fp16 or Compression.bf16.
        op: Average (the default), Sum, Min, Max, Product or Adasum, which is of floating-point numbers and any number
            of ranks.
        prescale_factor: what the tensor is multiplied by before it is sent.
        postscale_factor: what the result is multiplied by.
        process_set: the ranks that take part; this rank is one of them.
        priority: larger is sooner.

    Returns:
        A tensor of the same shape, dtype and device; the same bits on all ranks.

    Raises:
        BytePSError: see synchronize(). HorovodInternalError is another name of it.
        ValueError: before init(), both `op` and `average`, a name that is in flight already, a process set that the job
            does not know or that this rank is not in.
        TypeError: not a tensor, or an argument of a wrong type.
    """
    check_dense(tensor)
    check_compression(compression)
    check_process_set(process_set)
    op = reduction_op(average, op)
    factors = check_scaling(op, tensor.dtype, (prescale_factor, postscale_factor))
    name = operation_name("allreduce", name, process_set, priority)
    result: torch.Tensor = _Allreduce.apply(tensor, op, name, factors, process_set, priority, compression)
    return result
