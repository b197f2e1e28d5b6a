"""Variables of Keras as NumPy arrays, alike on all backends; and operations on many arrays at once, waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from byteps.arrays import broadcast_async, push_pull_async
from byteps.names import unnumbered
from byteps.operation import Operation
from byteps.reduce_op import ReduceOp


def to_array(variable: Any) -> np.ndarray:
    """The value of a variable of any backend."""
    value = variable.numpy() if hasattr(variable, "numpy") else variable
    return np.asarray(value)


def variable_name(variable: Any) -> str:
    """What a variable is called, the same on all ranks."""
    path = getattr(variable, "path", None)  # of Keras 3
    return unnumbered(path if isinstance(path, str) else str(variable.name))


def _results(operations: list[Operation]) -> list[Any]:
    """Waits for all, also when one fails; then raises the first error."""
    results = []
    first: Exception | None = None
    for operation in operations:
        try:
            results.append(operation.wait())
        except Exception as error:  # kept, and raised below
            first = first or error
    if first is not None:
        raise first
    return results


def push_pull_arrays(arrays: Sequence[np.ndarray], names: Sequence[str], op: ReduceOp) -> list[np.ndarray]:
    """The reductions over all workers, all at the same time; of any number of dimensions. The names are the same on all
    ranks.

    Raises:
        BytePSError: see byteps.errors.
        ValueError: before init().
        TypeError: a dtype that cannot be sent.
    """
    results = [np.array(array, order="C", copy=True) for array in arrays]
    given = enumerate(zip(results, names))
    return _results([push_pull_async(each, each, name=name, op=op, priority=-index) for index, (each, name) in given])


def broadcast_arrays(arrays: Sequence[np.ndarray], names: Sequence[str], root_rank: int) -> list[np.ndarray]:
    """The root's arrays, of any dtype but objects, all at the same time.

    Raises:
        BytePSError: see byteps.errors. FailedPreconditionError if the ranks' arrays differ in size.
        ValueError: before init(), or an array of objects.
    """
    results = []
    operations = []
    for index, (array, name) in enumerate(zip(arrays, names)):
        if array.dtype.hasobject:
            raise ValueError(f"{name} is an array of Python objects; send it with broadcast_object")
        results.append(np.array(array, order="C", copy=True))
        # As bytes: any dtype.
        sent = results[-1].reshape(-1).view(np.uint8)
        operations.append(broadcast_async(sent, root_rank, sent, name=name, priority=-index))
    _results(operations)
    return results


def broadcast_to_variables(variables: Sequence[Any], root_rank: int, prefix: str) -> None:
    """Overwrites every rank's variables with the root's. Raises as broadcast_arrays."""
    # The names of variables of tf_keras's optimizers depend on who has built them.
    names = [f"{prefix}.{index}" for index in range(len(variables))]
    values = broadcast_arrays([to_array(variable) for variable in variables], names, root_rank)
    for variable, value in zip(variables, values):
        variable.assign(value)
