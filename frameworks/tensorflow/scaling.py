"""The factors of Horovod's reductions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def scaled(tensor: Any, factor: float) -> Any:
    """The tensor, or tf.IndexedSlices, times a factor. Raises ValueError for numbers that are no floats."""
    if factor == 1.0:
        return tensor
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(tensor.values, factor), tensor.indices, tensor.dense_shape)
    tensor = tf.convert_to_tensor(tensor)
    if not tensor.dtype.is_floating:
        raise ValueError(f"a {tensor.dtype.name} tensor cannot be scaled; it must be of floating-point numbers")
    return tensor * tf.cast(factor, tensor.dtype)
