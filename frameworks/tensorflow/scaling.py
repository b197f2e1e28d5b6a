"""The factors of Horovod's reductions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def scaled(tensor: Any, factor: float, factor_of_result: float = 1.0) -> Any:
    """The tensor, or tf.IndexedSlices, times a factor. Raises ValueError for numbers that are no floats, also if it is
    the result that has a factor: before anything is sent."""
    if factor == 1.0 and factor_of_result == 1.0:
        return tensor
    if isinstance(tensor, tf.IndexedSlices):
        values = scaled(tensor.values, factor, factor_of_result)
        return tf.IndexedSlices(values, tensor.indices, tensor.dense_shape)
    tensor = tf.convert_to_tensor(tensor)
    if not tensor.dtype.is_floating:
        raise ValueError(f"a {tensor.dtype.name} tensor cannot be scaled; it must be of floating-point numbers")
    return tensor if factor == 1.0 else tensor * tf.cast(factor, tensor.dtype)
