"""broadcast: the tensor of one rank, to all."""

from __future__ import annotations

from typing import Any

from byteps.arguments import priority_number, root
from byteps.reduce_op import Average, ReduceOp, Sum
from byteps.session import Session, current_session
from byteps.torch.allreduce import apply_allreduce
from byteps.torch.collective_handle import CollectiveHandle
from byteps.torch.device_streams import new_output
from byteps.torch.handle import Handle, synchronize
from byteps.torch.process_set import ProcessSet, check_process_set, global_process_set
from byteps.torch.submission import numbered_name, start_broadcast
from byteps.torch.wire_buffer import check_dense, check_writable

import torch


def _name(session: Session, name: str | None, process_set: ProcessSet, priority: Any) -> str:
    if name is None and process_set.key():
        priority_number(priority)
        return f"broadcast.noname.{session.number('broadcast', process_set.key())}"
    return numbered_name(session, "broadcast", name, priority)


def _start(
    tensor: torch.Tensor,
    output: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
) -> Handle | CollectiveHandle[torch.Tensor]:
    session = current_session()
    root_rank = root(session, root_rank, process_set)
    name = _name(session, name, process_set, priority)
    return start_broadcast(tensor, output, root_rank, name, process_set, priority)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts a copy of the root's `tensor` into a new tensor on every rank, and does not block. The root's must not
    change meanwhile. Arguments and errors are broadcast()'s; what goes wrong on the way is raised by synchronize()."""
    check_process_set(process_set)
    check_dense(tensor)
    output = new_output(tensor)
    return _start(tensor, output, root_rank, name, process_set, priority)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle | CollectiveHandle[torch.Tensor]:
    """Starts a copy of the root's `tensor` into every rank's, which must be neither changed nor read meanwhile, and
    does not block. Arguments and errors are broadcast()'s; what goes wrong on the way is raised by synchronize()."""
    check_process_set(process_set)
    check_dense(tensor)
    check_writable(tensor)
    return _start(tensor, tensor, root_rank, name, process_set, priority)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Copies the root's `tensor` into every rank's, waits for it, and returns it. Arguments and errors are
    broadcast()'s."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set, priority))


class _Broadcast(torch.autograd.Function):
    """broadcast for autograd: the root's input reached every output, the inputs of the others none."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str,
        process_set: ProcessSet,
        priority: int,
        gradient_op: ReduceOp,
    ) -> torch.Tensor:
        ctx.arguments = (root_rank, name, process_set, priority, gradient_op)
        return synchronize(broadcast_async(tensor, root_rank, name, process_set, priority))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        root_rank, name, process_set, priority, gradient_op = ctx.arguments
        total = apply_allreduce(gradients[0], gradient_op, f"broadcast.{name}.gradient", process_set, priority)
        if current_session().native.info()["rank"] != root_rank:
            # Zeros that stay in the graph: the gradient's own gradient is a reduction, too, for which the root waits.
            total = total.masked_fill(torch.ones((), dtype=torch.bool, device=total.device), 0)
        return (total, *[None] * 5)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    gradient_op: ReduceOp = Average,
) -> torch.Tensor:
    """Copies the root's `tensor` into a new tensor on every rank, and waits for it. Differentiable.

    Args:
        tensor: the same shape and dtype on all ranks.
        root_rank: whose values are sent: a rank of the job, also with a process set.
        name: the same on all ranks; None: numbered.
        process_set: the ranks that take part; the root is one of them.
        priority: larger is sooner.
        gradient_op: what the root's gradient is of the gradients of all ranks; that of the others is zero. Average, as
            in Horovod, which suits a loss that is averaged over ranks; Sum is the derivative of the sum of all ranks'
            losses.

    Raises:
        BytePSError: see synchronize().
        ValueError: before init(), the root or this rank is not in the set, or as push_pull().
    """
    check_process_set(process_set)
    check_dense(tensor)
    session = current_session()
    root_rank = root(session, root_rank, process_set)
    if gradient_op not in (Average, Sum):
        raise ValueError(f"gradient_op is {gradient_op!r}; it must be Average or Sum")
    name = _name(session, name, process_set, priority)
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set, priority, gradient_op)
    return result
