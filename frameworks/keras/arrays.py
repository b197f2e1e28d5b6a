"""push_pull and broadcast of NumPy arrays: what Keras does beside its training steps, alike on all backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from byteps import _native
from byteps.names import unnumbered
from byteps.reduce_op import ReduceOp
from byteps.session import current_session

_DTYPES = {
    "uint8": _native.UINT8,
    "int8": _native.INT8,
    "int16": _native.INT16,
    "int32": _native.INT32,
    "int64": _native.INT64,
    "float16": _native.FLOAT16,
    "bfloat16": _native.BFLOAT16,  # of the package ml_dtypes
    "float32": _native.FLOAT32,
    "float64": _native.FLOAT64,
    "bool": _native.BOOL,
    "complex64": _native.COMPLEX64,
    "complex128": _native.COMPLEX128,
}


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
    """The reductions over all workers, all at the same time.

    Raises:
        BytePSError: see byteps.errors.
        ValueError: before init(), or a dtype that cannot be sent.
    """
    session = current_session().native
    results = []
    requests = []
    for index, (array, name) in enumerate(zip(arrays, names)):
        if array.dtype.name not in _DTYPES:
            raise ValueError(f"{name}: {array.dtype} cannot be sent; the dtypes are {', '.join(_DTYPES)}")
        result = np.array(array, order="C", copy=True)
        address = result.ctypes.data
        requests.append(
            session.push_pull(name, _DTYPES[array.dtype.name], result.shape, address, address, int(op), result, -index)
        )
        results.append(result)
    _wait_all(requests)
    return results


def broadcast_arrays(arrays: Sequence[np.ndarray], names: Sequence[str], root_rank: int) -> list[np.ndarray]:
    """The root's arrays, of any dtype but objects, all at the same time.

    Raises:
        BytePSError: see byteps.errors. FailedPreconditionError if the ranks' arrays differ in size.
        ValueError: before init(), or an array of objects.
    """
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


def to_array(variable: Any) -> np.ndarray:
    """The value of a variable of any backend."""
    value = variable.numpy() if hasattr(variable, "numpy") else variable
    return np.asarray(value)


def variable_name(variable: Any) -> str:
    """What a variable is called, the same on all ranks."""
    path = getattr(variable, "path", None)  # of Keras 3
    return unnumbered(path if isinstance(path, str) else str(variable.name))


def broadcast_to_variables(variables: Sequence[Any], root_rank: int, prefix: str) -> None:
    """Overwrites every rank's variables with the root's. Raises as broadcast_arrays."""
    # The names of variables of tf_keras's optimizers depend on who has built them.
    names = [f"{prefix}.{index}" for index in range(len(variables))]
    values = broadcast_arrays([to_array(variable) for variable in variables], names, root_rank)
    for variable, value in zip(variables, values):
        variable.assign(value)
