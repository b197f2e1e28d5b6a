"""Variables of Keras as NumPy arrays, alike on all backends; and operations on many arrays at once, waited for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from byteps.arrays import DTYPES, broadcast_async, push_pull_async
from byteps.keras.flavor import is_keras_3, keras_of
from byteps.names import unnumbered
from byteps.operation import Operation
from byteps.outlines import agree
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


def _backend_of_graph(keras: Any) -> Any:
    """keras.backend, whose session has the values of variables, if TensorFlow is without eager execution; else None."""
    if keras is None or is_keras_3(keras):
        return None
    import tensorflow as tf

    return None if tf.compat.v1.executing_eagerly_outside_functions() else keras.backend


def values_of(variables: Sequence[Any], keras: Any) -> list[np.ndarray]:
    """The values of variables of a model or an optimizer of this package, keras or tf_keras; None: of neither."""
    backend = _backend_of_graph(keras)
    if backend is None:
        return [to_array(variable) for variable in variables]
    return [np.asarray(value) for value in backend.batch_get_value(list(variables))]


def assign_values(variables: Sequence[Any], values: Sequence[np.ndarray], keras: Any) -> None:
    """Gives them these values."""
    backend = _backend_of_graph(keras)
    if backend is None:
        for variable, value in zip(variables, values):
            variable.assign(value)
    else:
        backend.batch_set_value(list(zip(variables, values)))


def multiply_values(variables: Sequence[Any], factor: float, keras: Any) -> None:
    """Multiplies them by a factor, where they are."""
    backend = _backend_of_graph(keras)
    if backend is None:
        for variable in variables:
            variable.assign(variable * factor)
    else:
        arrays = backend.batch_get_value(list(variables))
        backend.batch_set_value([(variable, array * factor) for variable, array in zip(variables, arrays)])


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


def _outline(variables: Sequence[Any], values: Sequence[np.ndarray], model: Any) -> list[str]:
    """What all ranks must have alike. The names of an optimizer's variables depend on what else a process has made."""
    of_model = {id(variable) for variable in model.variables}
    names = [variable_name(each) if id(each) in of_model else "a variable of the optimizer" for each in variables]
    return [f"{name} of {value.dtype.name} {list(value.shape)}" for name, value in zip(names, values)]


def broadcast_to_variables(variables: Sequence[Any], root_rank: int, prefix: str, model: Any) -> None:
    """Overwrites every rank's variables, of the model and its optimizer, with the root's.

    Raises:
        BytePSError: see byteps.errors. FailedPreconditionError, before anything is sent, if the ranks' variables differ
            in number, shape, dtype or name.
        ValueError: as broadcast_arrays.
    """
    keras = keras_of(model)
    values = values_of(variables, keras)
    agree(_outline(variables, values, model), f"{prefix}.outline", "the variables of model and optimizer")
    names = [f"{prefix}.{index}" for index in range(len(variables))]
    assign_values(variables, broadcast_arrays(values, names, root_rank), keras)
