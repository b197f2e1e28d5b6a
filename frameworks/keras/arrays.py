"""Variables of Keras as NumPy arrays, alike on all backends; and operations on many arrays at once, waited for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from byteps.arrays import DTYPES, broadcast_async, push_pull_async
from byteps.names import unnumbered
from byteps.operation import Operation
from byteps.reduce_op import ReduceOp


def _of_torch(tensor: Any) -> np.ndarray:
    """A tensor of PyTorch, which has no numpy() itself with a gradient, on a GPU, or in a type that is not NumPy's."""
    import torch

    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name != "bfloat16" and not name.startswith("float8"):
        return np.asarray(tensor.resolve_conj().resolve_neg().numpy())
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
    return tensor.view(torch.int16 if dtype.itemsize == 2 else torch.uint8).numpy().view(dtype)


def to_array(variable: Any) -> np.ndarray:
    """The value of a variable of any backend, or of a tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(variable, torch.Tensor):
        return _of_torch(variable)
    value = variable.numpy() if hasattr(variable, "numpy") else variable
    return np.asarray(value)


def variable_name(variable: Any) -> str:
    """What a variable is called, the same on all ranks."""
    path = getattr(variable, "path", None)  # of Keras 3
    return unnumbered(path if isinstance(path, str) else str(variable.name))


def without_random_states(variables: Sequence[Any]) -> list[Any]:
    """The variables but for those that random numbers come from, such as Dropout's: each worker draws its own."""
    return [variable for variable in variables if not variable_name(variable).endswith("seed_generator_state")]


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


def push_pull_arrays(arrays: Sequence[np.ndarray], names: Sequence[str | None], op: ReduceOp) -> list[np.ndarray]:
    """The reductions over all workers, all at the same time; of any number of dimensions. The names are the same on all
    ranks; None: numbered.

    Raises:
        BytePSError: see byteps.errors.
        ValueError: before init().
        TypeError: a dtype that cannot be sent.
    """
    results = [np.array(array, order="C", copy=True) for array in arrays]
    given = enumerate(zip(results, names))
    return _results([push_pull_async(each, each, name=name, op=op, priority=-index) for index, (each, name) in given])


def _type_name(dtype: np.dtype) -> str:
    """What tells a dtype from others whose elements are of the same size."""
    return dtype.str.rstrip("0123456789") if dtype.type.__module__ == "numpy" else dtype.name


def check_sendable(array: np.ndarray, called: str) -> None:
    """Raises ValueError for an array of objects."""
    if array.dtype.hasobject:
        raise ValueError(f"{called} is an array of Python objects; send it with broadcast_object")


def broadcast_arrays(arrays: Sequence[np.ndarray], names: Sequence[str], root_rank: int) -> list[np.ndarray]:
    """The root's arrays, of any dtype but objects, all at the same time.

    Raises:
        BytePSError: see byteps.errors. FailedPreconditionError if the ranks' arrays differ in shape or dtype;
            DeadlineExceededError if they differ in a dtype that push_pull does not take.
        ValueError: before init(), or an array of objects.
    """
    results = []
    operations = []
    for index, (array, name) in enumerate(zip(arrays, names)):
        check_sendable(array, name)
        results.append(np.array(array, order="C", copy=True))
        sent = results[-1]
        if not (sent.dtype.isnative and sent.dtype.name in DTYPES):
            # As bytes, which meet by their type.
            name, sent = f"{name}.{_type_name(sent.dtype)}", sent.reshape(*sent.shape, 1).view(np.uint8)
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
