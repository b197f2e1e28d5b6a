"""Collectives of NumPy arrays, waited for: what the modules of the frameworks make of values outside of their graphs.

Rows are what the first dimension counts, of which operations on rows need one. Names are the same on all ranks.
bfloat16 is that of the package ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from byteps import _native
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Adasum, Average, ReduceOp
from byteps.session import current_session

if TYPE_CHECKING:
    import numpy as np

DTYPES = {
    "uint8": _native.UINT8,
    "int8": _native.INT8,
    "int16": _native.INT16,
    "int32": _native.INT32,
    "int64": _native.INT64,
    "float16": _native.FLOAT16,
    "bfloat16": _native.BFLOAT16,
    "float32": _native.FLOAT32,
    "float64": _native.FLOAT64,
    "bool": _native.BOOL,
    "complex64": _native.COMPLEX64,
    "complex128": _native.COMPLEX128,
}


def dtype_code(name: str, array: np.ndarray) -> int:
    """The library's number of an array's dtype. Raises ValueError."""
    code = DTYPES.get(array.dtype.name)
    if code is None:
        raise ValueError(f"{name}: {array.dtype} cannot be sent; the dtypes are {', '.join(DTYPES)}")
    return code


def _call(kind: int, array: Any, name: str, process_set: ProcessSet, **options: Any) -> tuple[np.ndarray, list[int]]:
    """The result, and how many of its rows came from (or went to) each rank."""
    import numpy as np

    given = np.ascontiguousarray(array)
    if np.ndim(array) == 0:
        raise ValueError(f"{name}: a number has no rows; give it a dimension: numpy.atleast_1d(value)")
    asked = _native.Collective(
        kind,
        name,
        dtype=dtype_code(name, given),
        shape=given.shape,
        input=given.ctypes.data,
        process_set=check_process_set(process_set).native(),
        **options,
    )
    request = current_session().native.collective(asked, given)
    request.wait()
    result = request.result()
    if not len(result):
        return np.empty(result.shape or (0, *given.shape[1:]), given.dtype), result.splits
    # A copy, so that the array is writable and owns its memory.
    return np.frombuffer(result, given.dtype).reshape(result.shape).copy(), result.splits


def _wait_all(requests: Sequence[_native.Request]) -> None:
    """Waits for all, also when one fails; then raises the first error."""
    first: Exception | None = None
    for request in requests:
        try:
            request.wait()
        except Exception as error:  # kept, and raised below
            first = first or error
    if first is not None:
        raise first


def push_pull_arrays(arrays: Sequence[np.ndarray], names: Sequence[str], op: ReduceOp) -> list[np.ndarray]:
    """The reductions over all workers, all at the same time; of any number of dimensions.

    Raises:
        BytePSError: see byteps.errors.
        ValueError: before init(), or a dtype that cannot be sent.
    """
    import numpy as np

    session = current_session().native
    results = []
    requests = []
    for index, (array, name) in enumerate(zip(arrays, names)):
        code = dtype_code(name, array)
        result = np.array(array, order="C", copy=True)
        address = result.ctypes.data
        if op is Adasum:  # servers cannot: they see parts of arrays
            asked = _native.Collective(
                _native.ALL_REDUCE,
                name,
                dtype=code,
                shape=result.shape,
                input=address,
                output=address,
                output_bytes=result.nbytes,
                op=op,
                priority=-index,
            )
            requests.append(session.collective(asked, result))
        else:
            requests.append(session.push_pull(name, code, result.shape, address, address, int(op), result, -index))
        results.append(result)
    _wait_all(requests)
    return results


def broadcast_arrays(arrays: Sequence[np.ndarray], names: Sequence[str], root_rank: int) -> list[np.ndarray]:
    """The root's arrays, of any dtype but objects, all at the same time.

    Raises:
        BytePSError: see byteps.errors. FailedPreconditionError if the ranks' arrays differ in size.
        ValueError: before init(), or an array of objects.
    """
    import numpy as np

    session = current_session().native
    results = []
    requests = []
    for index, (array, name) in enumerate(zip(arrays, names)):
        if array.dtype.hasobject:
            raise ValueError(f"{name} is an array of Python objects; send it with broadcast_object")
        result = np.array(array, order="C", copy=True)
        address = result.ctypes.data
        # As bytes: any dtype.
        requests.append(
            session.broadcast(name, _native.UINT8, (result.nbytes,), address, address, root_rank, result, -index)
        )
        results.append(result)
    _wait_all(requests)
    return results


def allgather(array: Any, name: str, process_set: ProcessSet = global_process_set, priority: int = 0) -> np.ndarray:
    """The rows of all ranks, of which each may have another number.

    Raises:
        BytePSError: see byteps.errors.
        ValueError: before init(), a number without dimensions, or a dtype that cannot be sent.
    """
    return _call(_native.ALL_GATHER, array, name, process_set, priority=priority)[0]


def reducescatter(
    array: Any,
    name: str,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    scale: tuple[float, float] = (1.0, 1.0),
) -> np.ndarray:
    """This rank's rows of the reduction: as even as possible, the first ranks have one more. `scale`: what inputs and
    result are multiplied by. Raises as allgather."""
    options = {} if scale == (1.0, 1.0) else {"scale": scale}
    return _call(_native.REDUCE_SCATTER, array, name, process_set, op=op, priority=priority, **options)[0]


def alltoall(
    array: Any,
    name: str,
    splits: Sequence[int] | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> tuple[np.ndarray, list[int]]:
    """The rows that all ranks have for this one, and how many came from each. `splits`: how many rows go to each rank;
    None: equal numbers. Raises as allgather; ValueError also for splits without an entry."""
    options = {} if splits is None else {"splits": [int(rows) for rows in splits]}
    if splits is not None and not len(splits):
        raise ValueError(f"{name}: splits is empty; it has one entry for each rank")
    return _call(_native.ALL_TO_ALL, array, name, process_set, priority=priority, **options)
