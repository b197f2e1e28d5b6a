"""push_pull of tensors of which each worker has some rows only, such as the gradients of embeddings.

indices, rows = byteps.sparse_push_pull(indices, rows, 50_000, name="embedding")
"""

from __future__ import annotations

from typing import Any

from byteps import _native
from byteps.arguments import priority_number, tensor_name, whole_number
from byteps.arrays import give_back, numpy_dtype
from byteps.reduce_op import choose_op
from byteps.session import current_session


class SparseOperation:
    """A sparse_push_pull that goes on: wait for it, or drop it."""

    __slots__ = ("_dtype", "_request")

    def __init__(self, request: _native.Request, dtype: str) -> None:
        self._request = request
        self._dtype = dtype

    def wait(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Waits until the operation has ended, at most `timeout` seconds, and returns indices and rows.

        Raises:
            BytePSError: the operation's error; or DeadlineExceededError when the wait ended first: it then goes on.
        """
        import numpy

        self._request.wait(timeout)
        found = self._request.result(1)
        indices = numpy.frombuffer(found, "int64", found.shape[0]) if found.shape else None
        values = self._request.result(0)
        # An array without elements may have an extent of 0 anywhere.
        rows = numpy.frombuffer(values, self._dtype, len(values) // numpy.dtype(self._dtype).itemsize)
        return indices, rows.reshape(values.shape)

    def done(self) -> bool:
        """Whether the operation has ended. Never blocks, never raises the operation's error."""
        return self._request.test()

    def cancel(self) -> None:
        """Asks to give up, as Operation.cancel."""
        self._request.cancel()


def sparse_push_pull_async(
    indices: Any,
    values: Any,
    rows: int,
    *,
    name: str | None = None,
    average: bool = True,
    priority: int = 0,
    timeout: float | None = None,
) -> SparseOperation:
    """As sparse_push_pull, but returns at once: `operation.wait()`. The arrays may be used again at once."""
    session = current_session()
    numbers = _native.Array(indices, writable=False)
    if numbers.dtype != _native.INT64 or len(numbers.shape) != 1:
        raise ValueError("indices must be one-dimensional and of int64")
    read = _native.Array(values, writable=False)
    if not read.shape or read.shape[0] != numbers.shape[0]:
        raise ValueError(f"values has shape {read.shape}, indices {numbers.shape}: their first extents must be equal")
    dtype = numpy_dtype(values, read)
    shape = [whole_number("rows", rows), *read.shape[1:]]
    chosen = choose_op(None, average)
    urgency = priority_number(priority)
    called = f"sparse.noname.{session.number('sparse')}" if name is None else tensor_name(name)
    try:
        request = session.native.sparse_all_reduce(
            called,
            read.dtype,
            shape,
            numbers.address,
            read.address,
            numbers.shape[0],
            chosen,
            None,
            urgency,
            timeout,
        )
    except Exception:  # such as a row that the tensor has not
        if name is None:
            give_back(session, "sparse", called)
        raise
    return SparseOperation(request, dtype)


def sparse_push_pull(
    indices: Any,
    values: Any,
    rows: int,
    *,
    name: str | None = None,
    average: bool = True,
    priority: int = 0,
    timeout: float | None = None,
) -> tuple[Any, Any]:
    """Reduces a tensor of which each worker has some rows, zeros elsewhere. The bits are those of push_pull of whole
    tensors.

    Args:
        indices: numbers of rows, int64, in any order; rows that are named several times are added up.
        values: these rows; their number may differ between workers.
        rows: how many the whole tensor has.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        average: whether sums are divided by the number of workers.
        priority: of several the one with the larger is sooner.
        timeout: seconds, of the whole operation; None means BYTEPS_OP_TIMEOUT.

    Returns:
        The numbers of all rows that any worker has, ascending, and these rows; or None and the whole tensor, where the
        rows of all workers are more bytes than the whole tensor there and back.

    Raises:
        TypeError, ValueError, BytePSError: as push_pull.
    """
    return sparse_push_pull_async(
        indices, values, rows, name=name, average=average, priority=priority, timeout=timeout
    ).wait()
