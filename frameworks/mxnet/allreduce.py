"""What Horovod's users call push_pull: allreduce and its kin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from byteps.mxnet.ops import push_pull, push_pull_inplace
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import ReduceOp, choose_op
from byteps.session import current_session

import mxnet as mx

# What MXNet has for it, as mxnet.contrib.amp.
_BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


def check_factors(tensor: mx.nd.NDArray, *factors: float) -> None:
    """Raises ValueError for factors of integers."""
    floating = tensor.dtype == _BFLOAT16 or np.dtype(tensor.dtype).kind == "f"
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
    """push_pull with factors before and behind it: see there. Raises ValueError also for factors of integers."""
    check_factors(tensor, prescale_factor, postscale_factor)
    sent = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    reduced = push_pull(sent, name=name, priority=priority, op=_op(average, op), process_set=process_set)
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
    """allreduce in place; returns the array."""
    check_factors(tensor, prescale_factor, postscale_factor)
    if prescale_factor != 1.0:
        tensor *= prescale_factor
    push_pull_inplace(tensor, name=name, priority=priority, op=_op(average, op), process_set=process_set)
    if postscale_factor != 1.0:
        tensor *= postscale_factor
    return tensor


def member_names(
    kind: str, tensors: Sequence[mx.nd.NDArray], name: str | None, process_set: ProcessSet = global_process_set
) -> list[str]:
    """A name for each array of a group."""
    if name is None:
        name = f"noname.{current_session().number(kind, process_set.key())}"
    return [f"{kind}.{name}.{index + 1}" for index in range(len(tensors))]


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
    return [
        allreduce(tensor, average, each, priority, prescale_factor, postscale_factor, process_set, op)
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
    return [
        allreduce_(tensor, average, each, priority, prescale_factor, postscale_factor, process_set, op)
        for tensor, each in zip(tensors, member_names("grouped_allreduce", tensors, name, process_set))
    ]
