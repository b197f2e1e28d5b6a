"""What Horovod's users call push_pull: allreduce and its kin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from byteps.arguments import priority_number, tensor_name
from byteps.mxnet.ops import BFLOAT16, check_array, check_reduction, push_pull, push_pull_inplace, set_ranks
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import ReduceOp, choose_op
from byteps.session import current_session

import mxnet as mx


def check_factors(tensor: mx.nd.NDArray, *factors: float) -> None:
    """Raises TypeError for factors that are no numbers, ValueError for factors of integers."""
    for factor in factors:
        try:
            math.isfinite(factor)
        except TypeError:
            raise TypeError(f"a factor is {factor!r}; it must be a number") from None
    floating = tensor.dtype == BFLOAT16 or np.dtype(tensor.dtype).kind == "f"
    if any(factor != 1.0 for factor in factors) and not floating:
        raise ValueError(f"an array of {np.dtype(tensor.dtype)} cannot be scaled; it must be of floating-point numbers")


def _op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None and op is not None:
        raise ValueError("both op and average are given; give one of the two")
    return choose_op(op, average, adasum=True)


def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> mx.nd.NDArray:
    """push_pull with factors before and behind it: see there. Raises ValueError also for factors of integers,
    TypeError for what are no numbers."""
    chosen = _op(average, op)
    check_array(tensor)
    check_factors(tensor, prescale_factor, postscale_factor)
    sent = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    reduced = push_pull(sent, name=name, priority=priority, op=chosen, process_set=process_set)
    return reduced if postscale_factor == 1.0 else reduced * postscale_factor


def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> mx.nd.NDArray:
    """allreduce in place; returns the array. One that is refused is left alone."""
    chosen = _op(average, op)
    _check([tensor], chosen, priority, (prescale_factor, postscale_factor), process_set)
    if name is not None:
        tensor_name(name)
    if prescale_factor != 1.0:
        tensor *= prescale_factor
    push_pull_inplace(tensor, name=name, priority=priority, op=chosen, process_set=process_set)
    if postscale_factor != 1.0:
        tensor *= postscale_factor
    return tensor


def member_names(
    kind: str, tensors: Sequence[mx.nd.NDArray], name: str | None, process_set: ProcessSet = global_process_set
) -> list[str]:
    """A name for each array of a group. Whatever can be wrong with the other arguments is to be refused before: a rank
    that uses a number up alone meets no other any more. Raises ValueError for a name that cannot be one."""
    if name is None:
        name = f"noname.{current_session().number(kind, process_set.key())}"
    return [tensor_name(f"{kind}.{name}.{index + 1}") for index in range(len(tensors))]


def _check(
    tensors: Sequence[mx.nd.NDArray],
    op: ReduceOp,
    priority: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> None:
    """Refuses what push_pull would refuse, but for the name: before any of the arrays is changed or sent. Raises as
    allreduce."""
    current_session()
    priority_number(priority)
    set_ranks(process_set)
    for tensor in tensors:
        check_array(tensor)
        check_factors(tensor, *factors)
        check_reduction(op, tensor)


def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> list[mx.nd.NDArray]:
    """allreduce of several arrays, which travel at the same time."""
    chosen = _op(average, op)
    _check(tensors, chosen, priority, (prescale_factor, postscale_factor), process_set)
    return [
        allreduce(tensor, None, each, priority, prescale_factor, postscale_factor, process_set, chosen)
        for tensor, each in zip(tensors, member_names("grouped_allreduce", tensors, name, process_set))
    ]


def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> list[mx.nd.NDArray]:
    """allreduce_ of several arrays, which travel at the same time."""
    chosen = _op(average, op)
    _check(tensors, chosen, priority, (prescale_factor, postscale_factor), process_set)
    return [
        allreduce_(tensor, None, each, priority, prescale_factor, postscale_factor, process_set, chosen)
        for tensor, each in zip(tensors, member_names("grouped_allreduce", tensors, name, process_set))
    ]
