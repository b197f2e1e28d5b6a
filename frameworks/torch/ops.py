"""push_pull of tensors (and, for programs that look for it here, broadcast).

Names. Tensors meet by name across the workers; neither declarations nor operations need the same order. Operations
without a name are numbered, and those alone need the same order on all ranks. A name may be used again with another
shape or dtype, but two operations in flight cannot share one.

Tensors. bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64 and complex128, of any
shape, zero elements and zero dimensions included, contiguous or not. CPU tensors that are contiguous are sent from
where they are. CUDA tensors are copied by the library, behind what the current stream holds, and the stream that is
current at synchronize() waits for the result; the host waits for no GPU. Shape and dtype must agree across ranks, or
every rank gets an error.
"""

from __future__ import annotations

from typing import Any

from byteps import _native
from byteps.arguments import whole_number
from byteps.basics import get_pushpull_speed, local_rank, local_size, rank, resume, shutdown, size, suspend
from byteps.horovod_basics import init
from byteps.reduce_op import Average, ReduceOp, Sum, choose_op
from byteps.session import current_session
from byteps.torch.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.compression import Compression, Compressor, check_compression
from byteps.torch.device_streams import new_output
from byteps.torch.dtypes import check_reduction, dtype_code
from byteps.torch.handle import Handle, poll, synchronize
from byteps.torch.process_set import ProcessSet, global_process_set
from byteps.torch.submission import into_output, numbered_name, operation_name, start_part, start_push_pull
from byteps.torch.wire_buffer import check_dense, check_layout, check_writable

import torch

# The basics are here for programs of BytePS, which import them from this module.
__all__ = [
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_async_into",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]


def declare(name: str, tensor: torch.Tensor | None = None) -> None:
    """Announces a tensor ahead of its first operation, so that the job places it in the meantime. Never needed, and in
    any order.

    Args:
        name: as push_pull will get it.
        tensor: one of the shape and dtype to come. Without it nothing can be announced yet; the name is only checked.
    """
    session = current_session()
    if tensor is None:
        numbered_name(session, "push_pull", name)
        return
    check_layout(tensor)  # no values are sent: it may be on the device "meta"
    code = dtype_code(tensor.dtype)
    session.native.declare(numbered_name(session, "push_pull", name), code, tuple(tensor.shape))


def push_pull_async(
    tensor: torch.Tensor,
    average: bool | None = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    op: ReduceOp | None = None,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts a reduction of `tensor` over all workers into a new tensor, and does not block. The tensor must not change
    until the operation has ended. Arguments and errors are push_pull()'s, without compression; what goes wrong on the
    way is raised by synchronize()."""
    del version
    check_dense(tensor)
    output = new_output(tensor)
    return start_push_pull(tensor, output, choose_op(op, average, adasum=True), name, priority)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool | None = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    op: ReduceOp | None = None,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts a reduction of `tensor` over all workers into itself, and does not block. The tensor must be neither
    changed nor read until the operation has ended. Arguments and errors are push_pull()'s, without compression, and a
    ValueError for a tensor whose elements share memory; what goes wrong on the way is raised by synchronize()."""
    del version
    check_dense(tensor)
    check_writable(tensor)
    return start_push_pull(tensor, tensor, choose_op(op, average, adasum=True), name, priority)


def push_pull_async_into(
    tensor: torch.Tensor,
    output: torch.Tensor,
    name: str | None = None,
    priority: int = 0,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts a reduction of `tensor` over all workers, or the ranks of a process set, into `output`, which has its
    shape and dtype: `tensor` itself, or memory that is not shared with it. Does not block; neither may be changed, nor
    the output read, until the operation has ended. Errors are those of push_pull_async_inplace()."""
    check_dense(tensor)
    if output is not tensor:
        check_dense(output)
    check_writable(output)
    if output is not tensor and (output.shape != tensor.shape or output.dtype != tensor.dtype):
        raise ValueError(
            f"the output is a {output.dtype} of shape {tuple(output.shape)}, "
            f"the tensor a {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    chosen = choose_op(op, True, adasum=True)
    if process_set is global_process_set:
        return start_push_pull(tensor, output, chosen, name, priority)
    check_reduction(chosen, tensor.dtype)
    name = operation_name("push_pull", name, process_set, priority)
    return start_part(
        into_output(_native.ALL_REDUCE, tensor, output, name, process_set, priority, options={"op": chosen})
    )


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool | None = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    op: ReduceOp | None = None,
) -> torch.Tensor:
    """Reduces `tensor` over all workers into itself, waits for it, and returns it. Raises what push_pull() does, and
    ValueError for a tensor whose elements share memory."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority, op))


class _PushPull(torch.autograd.Function):
    """push_pull for autograd: the gradient of a sum over workers is the sum of the workers' gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        op: ReduceOp,
        name: str,
        priority: int,
        compression: type[Compressor],
    ) -> torch.Tensor:
        ctx.arguments = (op, name, priority, compression)
        sent, compressed = compression.compress(tensor)
        return compression.decompress(
            synchronize(push_pull_async(sent, name=name, priority=priority, op=op)), compressed
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        op, name, priority, compression = ctx.arguments
        if op not in (Sum, Average):
            raise NotImplementedError(f"push_pull with op={op.name} has no gradient; Sum and Average have")
        # Applied, not called: the gradient may be differentiated again.
        return _PushPull.apply(gradients[0], op, name + ".gradient", priority, compression), None, None, None, None


def push_pull(
    tensor: torch.Tensor,
    average: bool | None = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
) -> torch.Tensor:
    """Reduces `tensor` over all workers into a new tensor, and waits for it.

    Differentiable for Sum and Average: the gradient is the push_pull of the gradients with the same op.

    Args:
        tensor: any shape; see the module for dtypes. The same shape and dtype on all ranks.
        average: with op=None: True or None for Average, False for Sum.
        name: the same on all ranks; None: numbered.
        version: accepted for compatibility; the library counts the rounds of a tensor itself.
        priority: larger is sooner.
        compression: Compression.none or Compression.fp16.
        op: Sum, Average, Min, Max, Product or Adasum.

    Returns:
        A tensor of the same shape, dtype and device; the same bits on all ranks.

    Raises:
        BytePSError: see synchronize().
        ValueError: before init(), a dtype that cannot be sent, an unknown op, a name that is in flight already.
        TypeError: not a tensor, a priority that is no whole number, or something that is no compression.
    """
    del version
    check_dense(tensor)
    check_compression(compression)
    chosen = choose_op(op, average, adasum=True)
    check_reduction(chosen, tensor.dtype)
    name = numbered_name(current_session(), "push_pull", name, priority)
    result: torch.Tensor = _PushPull.apply(tensor, chosen, name, priority, compression)
    return result


# The name that BytePS's users know.
byteps_push_pull = push_pull_async_inplace


class _GroupCount:
    """How many gradients of a step have been pushed, for push_pull_group_sync_inplace."""

    def __init__(self) -> None:
        self.total = 0
        self.pushed = 0


_GROUP = _GroupCount()


def byteps_torch_set_num_grads(num_grads_: int) -> None:
    """Says how many gradients there are, and starts counting those of push_pull_group_sync_inplace anew."""
    _GROUP.total = whole_number("num_grads_", num_grads_)
    _GROUP.pushed = 0


def push_pull_group_sync_inplace(
    tensor: torch.Tensor,
    average: bool | None = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> tuple[Handle | CollectiveHandle[torch.Tensor], int]:
    """push_pull_async_inplace, and how many were pushed since the count began. It begins anew behind the last one,
    whose number byteps_torch_set_num_grads() has said."""
    handle = push_pull_async_inplace(tensor, average, name, version, priority)
    _GROUP.pushed += 1
    count = _GROUP.pushed
    if count == _GROUP.total:
        _GROUP.pushed = 0
    return handle, count
