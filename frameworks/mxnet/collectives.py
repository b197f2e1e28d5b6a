"""allgather, reducescatter and alltoall, by the names of Horovod. (A row is what the first dimension counts.)

Asynchronous, as push_pull is. But only reducescatter knows how many rows it brings: the arrays that the others return
wait for their operation when they are first used, which late_array.py explains. Errors are MXNetError, raised there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from byteps.arguments import priority_number, splits_fault, whole_number
from byteps.mxnet import library
from byteps.mxnet.allreduce import check_factors, member_names
from byteps.mxnet.late_array import late_array
from byteps.mxnet.ops import check_array, check_reduction, operation_name, set_ranks, turn_of
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import current_session

import mxnet as mx
from mxnet.base import MXNetError, check_call


def _module(tensor: mx.nd.NDArray) -> Any:
    return mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd


def _like(values: np.ndarray, tensor: mx.nd.NDArray) -> mx.nd.NDArray:
    # Classic MXNet has no arrays without elements, but in the semantics of NumPy.
    return _module(tensor).array(values, dtype=values.dtype, ctx=tensor.context)


class _Operation:
    """One on its way: the array that stands for it, what it brings, and for whom."""

    def __init__(
        self,
        what: str,
        tensor: mx.nd.NDArray,
        name: str | None,
        priority: int,
        process_set: ProcessSet,
        op: int = 0,
        scale: tuple[float, float] = (1.0, 1.0),
        splits: Sequence[int] = (),
    ) -> None:
        """Pushes it on the engine. Raises MXNetError, TypeError, ValueError."""
        urgency = priority_number(priority)  # before the operation has its number
        ranks = _check(what, tensor, name, process_set)
        name = operation_name(current_session(), what, name, process_set)
        self._name = name
        self._standing = mx.nd.empty((1,), ctx=mx.cpu())
        self._rows = library.Rows(
            what,
            tensor,
            self._standing,
            turn_of(name, ranks),
            name,
            int(op),
            urgency,
            scale,
            splits,
            ranks,
        )
        # The array itself would be kept as long as nobody has used the result.
        self._dtype = tensor.dtype
        self._like = _module(tensor).empty((1,), dtype=tensor.dtype, ctx=tensor.context)

    def rows(self) -> mx.nd.NDArray:
        """The rows; an array that waits when it is used."""
        return late_array(self._like, self._take_rows)

    def splits(self) -> mx.nd.NDArray:
        """How many rows came from each rank, int32; likewise."""
        return late_array(self._like, self._take_splits)

    def _wait(self) -> tuple[int, ...]:
        """The shape of the rows, when they have come. Raises MXNetError."""
        self._standing.wait_to_read()
        shape = self._rows.shape()
        if not shape:
            # MXNet tells an error once: at the first wait, or by waitall(). It leaves out what comes behind an error.
            raise MXNetError(
                f"{self._name}: nothing has come: the operation has failed, and the error was raised before (at the "
                "first use of its result, or by waitall()), or one of the same name before it has"
            )
        return shape

    def _take_rows(self) -> mx.nd.NDArray:
        shape = self._wait()
        address = self._rows.address()
        if not address:
            return _like(np.empty(shape, self._dtype), self._like)
        array = _module(self._like).empty(shape, dtype=self._dtype, ctx=self._like.context)
        source = ctypes.c_void_p(address)
        check_call(mx.base._LIB.MXNDArraySyncCopyFromCPU(array.handle, source, ctypes.c_size_t(array.size)))
        return array

    def _take_splits(self) -> mx.nd.NDArray:
        self._wait()
        return _like(np.array(self._rows.splits(), np.int32), self._like)


def _check(what: str, tensor: mx.nd.NDArray, name: str | None, process_set: ProcessSet) -> tuple[int, ...]:
    """The ranks of the set, none for all. To be called before an operation has its number. Raises MXNetError,
    TypeError, ValueError."""
    check_array(tensor)
    current_session()
    ranks = set_ranks(process_set)
    if not tensor.shape:
        raise ValueError(f"{name or what}: a number has no rows; give it a dimension: tensor.reshape((1,))")
    return ranks


def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Every worker's rows, those of rank 0 first; asynchronous, and the array waits when it is first used.

    Args:
        tensor: the first dimension may differ between ranks; the others and the dtype are the same.
        name: the same on all ranks; None: numbered.
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Raises:
        MXNetError: where the result is used: what the library says. Here: a dtype that cannot be sent.
        ValueError: before init(), an array without dimensions, or a process set that the job does not know.
        TypeError: not a dense NDArray in host memory, or a priority that is no whole number.
    """
    return _Operation("allgather", tensor, name, priority, process_set).rows()


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """allgather of several arrays, which travel at the same time."""
    priority_number(priority)
    for tensor in tensors:
        _check("allgather", tensor, name, process_set)
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
    asynchronous.

    Args:
        tensor: the same shape and dtype on all ranks.
        op: Average, Sum, Min, Max or Product.
        name: the same on all ranks; None: numbered.
        priority: larger is sooner.
        prescale_factor: multiplies the array before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part; this rank is one of them.

    Raises:
        As allgather; ValueError also for factors of integers; NotImplementedError: Adasum.
    """
    chosen = _checked_reduction([tensor], op, prescale_factor, postscale_factor)
    scale = (float(prescale_factor), float(postscale_factor))
    rows = _rows_of_this_rank(tensor.shape[0], process_set) if tensor.shape else 0
    if rows * int(np.prod(tensor.shape[1:])) == 0:
        return _Operation("reducescatter", tensor, name, priority, process_set, chosen, scale).rows()
    urgency = priority_number(priority)
    ranks = _check("reducescatter", tensor, name, process_set)
    name = operation_name(current_session(), "reducescatter", name, process_set)
    output = _module(tensor).empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, ctx=tensor.context)
    turn = turn_of(name, ranks)
    library.reduce_scatter(tensor, output, turn, name, chosen, urgency, scale, ranks)
    return output


def _checked_reduction(
    tensors: Sequence[mx.nd.NDArray], op: ReduceOp, prescale_factor: float, postscale_factor: float
) -> int:
    """The number of the reduction, which these arrays must allow. Raises as reducescatter."""
    chosen = choose_op(op, None)
    for tensor in tensors:
        check_array(tensor)
        check_factors(tensor, prescale_factor, postscale_factor)
        check_reduction(chosen, tensor)
    return int(chosen)


def _rows_of_this_rank(rows: int, process_set: ProcessSet) -> int:
    info = current_session().native.info()
    ranks = set_ranks(process_set) or range(info["size"])
    if info["rank"] not in ranks:
        raise ValueError(f"rank {info['rank']} is not part of {process_set}")
    return rows // len(ranks) + (list(ranks).index(info["rank"]) < rows % len(ranks))


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """reducescatter of several arrays, which travel at the same time."""
    _checked_reduction(tensors, op, prescale_factor, postscale_factor)
    priority_number(priority)
    for tensor in tensors:
        _check("reducescatter", tensor, name, process_set)
        _rows_of_this_rank(tensor.shape[0], process_set)
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
    """Sends each worker its rows of the array, and brings those of all workers for this one; asynchronous, and the
    arrays wait when they are first used.

    Args:
        tensor: the first dimension may differ between ranks; the others and the dtype are the same.
        splits: how many rows go to each rank: numbers, or an NDArray of them, which is read at once; None: equal
            numbers.
        name: the same on all ranks; None: numbered.
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        The rows for this rank, those of rank 0 first. With splits: these, and how many came from each rank, int32.

    Raises:
        As allgather; ValueError also for splits without an entry, MXNetError at once for those that do not add up.
    """
    given = splits.asnumpy().astype(np.int64).tolist() if isinstance(splits, mx.nd.NDArray) else splits
    rows = None if given is None else [whole_number("a split", split) for split in given]
    if rows == []:
        raise ValueError("splits is empty; it has one entry for each rank")
    ranks = _check("alltoall", tensor, name, process_set)
    members = len(ranks) or current_session().native.info()["size"]
    if fault := splits_fault(rows, tensor.shape[0], members):
        raise MXNetError(fault)
    operation = _Operation("alltoall", tensor, name, priority, process_set, splits=rows or ())
    return operation.rows() if rows is None else (operation.rows(), operation.splits())
