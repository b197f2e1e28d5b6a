"""allgather, reducescatter and alltoall, by the names of Horovod. (A row is what the first dimension counts.)

Their results have a size that is known when they have come. So these functions wait: for what computes the array, and
for the result. Errors are MXNetError, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from byteps import collectives
from byteps.errors import BytePSError
from byteps.mxnet.allreduce import member_names
from byteps.mxnet.ops import check_array, operation_name
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import current_session

import mxnet as mx
from mxnet.base import MXNetError

T = TypeVar("T")


def _call(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    try:
        return function(*arguments, **options)
    except BytePSError as error:
        raise MXNetError(str(error)) from error


def _like(result: np.ndarray, tensor: mx.nd.NDArray) -> mx.nd.NDArray:
    module = mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd
    # Classic MXNet has no arrays without elements, but in the semantics of NumPy.
    return module.array(result, dtype=tensor.dtype, ctx=tensor.context)


def _checked(kind: str, tensor: mx.nd.NDArray, name: str | None, process_set: ProcessSet) -> str:
    check_array(tensor)
    session = current_session()
    return operation_name(session, kind, name, check_process_set(process_set))


def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Every worker's rows, those of rank 0 first; waits.

    Args:
        tensor: the first dimension may differ between ranks; the others and the dtype are the same.
        name: the same on all ranks; None: numbered.
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Raises:
        MXNetError: what the library says.
        ValueError: before init(), an array without dimensions, or a process set that the job does not know.
        TypeError: not a dense NDArray in host memory.
    """
    name = _checked("allgather", tensor, name, process_set)
    return _like(_call(collectives.allgather, tensor.asnumpy(), name, process_set, priority), tensor)


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """allgather of several arrays, one after another; waits."""
    names = member_names("grouped_allgather", tensors, name, process_set)
    return [allgather(tensor, each, priority, process_set) for tensor, each in zip(tensors, names)]


def reducescatter(
    tensor: mx.nd.NDArray,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """This worker's rows of the reduction over all workers, as even as possible, the first workers having one more;
    waits.

    Args:
        tensor: the same shape and dtype on all ranks.
        op: Average, Sum, Min, Max or Product.
        name: the same on all ranks; None: numbered.
        priority: larger is sooner.
        prescale_factor: multiplies the array before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part; this rank is one of them.

    Raises:
        As allgather; NotImplementedError: Adasum.
    """
    chosen = choose_op(op, None)
    name = _checked("reducescatter", tensor, name, process_set)
    scale = (float(prescale_factor), float(postscale_factor))
    given = tensor.asnumpy()
    return _like(_call(collectives.reducescatter, given, name, chosen, process_set, priority, scale), tensor)


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """reducescatter of several arrays, one after another; waits."""
    names = member_names("grouped_reducescatter", tensors, name, process_set)
    return [
        reducescatter(tensor, op, each, priority, prescale_factor, postscale_factor, process_set)
        for tensor, each in zip(tensors, names)
    ]


def alltoall(
    tensor: mx.nd.NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends each worker its rows of the array, and brings those of all workers for this one; waits.

    Args:
        tensor: the first dimension may differ between ranks; the others and the dtype are the same.
        splits: how many rows go to each rank: numbers, or an NDArray of them; None: equal numbers.
        name: the same on all ranks; None: numbered.
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        The rows for this rank, those of rank 0 first. With splits: these, and how many came from each rank, int32.

    Raises:
        As allgather.
    """
    name = _checked("alltoall", tensor, name, process_set)
    rows = splits.asnumpy().astype(np.int64).tolist() if isinstance(splits, mx.nd.NDArray) else splits
    received, came = _call(collectives.alltoall, tensor.asnumpy(), name, rows, process_set, priority)
    result = _like(received, tensor)
    return result if splits is None else (result, _like(np.array(came, np.int32), mx.nd.array([0], dtype=np.int32)))
