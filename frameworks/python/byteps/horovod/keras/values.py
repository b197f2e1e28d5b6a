"""Collectives of values, as horovod.keras has them: tensors of TensorFlow come back where Keras runs on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from byteps.keras import values
from byteps.keras.flavor import backend_of, installed_keras


def _gives_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of byteps.keras, with tensors of TensorFlow's types: a number is float32 or int32. As there with
    NumPy's arrays on other backends, and in a graph of TensorFlow 1, where Horovod's runs a session."""

    @functools.wraps(function)
    def call(value: Any, *arguments: Any, **options: Any) -> Any:
        if backend_of(installed_keras()) != "tensorflow":
            return function(value, *arguments, **options)
        import tensorflow as tf

        if not tf.executing_eagerly():
            return function(value, *arguments, **options)
        given = value if hasattr(value, "numpy") else tf.constant(value)
        return tf.convert_to_tensor(function(given, *arguments, **options))

    return call


allgather = _gives_tensors(values.allgather)
allreduce = _gives_tensors(values.allreduce)
broadcast = _gives_tensors(values.broadcast)
reducescatter = _gives_tensors(values.reducescatter)

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]
