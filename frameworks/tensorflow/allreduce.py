"""What Horovod's users call push_pull: allreduce and grouped_allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.reduce_op import ReduceOp
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.ops import check_op, grouped_push_pull, push_pull

import tensorflow as tf


def _scaled(tensor: Any, factor: float) -> Any:
    if factor == 1.0:
        return tensor
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(tensor.values, factor), tensor.indices, tensor.dense_shape)
    tensor = tf.convert_to_tensor(tensor)
    if not tensor.dtype.is_floating:
        raise ValueError(f"a {tensor.dtype.name} tensor cannot be scaled; it must be of floating-point numbers")
    return tensor * tf.cast(factor, tensor.dtype)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> Any:
    """push_pull with factors before and behind it.

    Args:
        tensor: and the rest: see push_pull.
        prescale_factor: multiplies the tensor before the reduction.
        postscale_factor: multiplies the result.
        ignore_name_scope: accepted for compatibility: a name given has no scope in front of it here.
    """
    del ignore_name_scope
    reduced = push_pull(
        _scaled(tensor, prescale_factor),
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        op=check_op(op, average),
        name=name,
    )
    return _scaled(reduced, postscale_factor)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """allreduce of several tensors at the same time. Raises ValueError for tf.IndexedSlices."""
    del device_sparse, ignore_name_scope
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise ValueError("grouped_allreduce takes no tf.IndexedSlices; reduce them one by one, or as dense tensors")
    with tf.device(device_dense):
        reduced = grouped_push_pull(
            [_scaled(tensor, prescale_factor) for tensor in tensors],
            compression=compression,
            op=check_op(op, average),
            name=name,
        )
        return [_scaled(tensor, postscale_factor) for tensor in reduced]


def broadcast_(variables: Sequence[Any], root_rank: int, name: str | None = None) -> list[Any]:
    """Overwrites every rank's variables with the root's, and returns them."""
    from byteps.tensorflow.variables import broadcast_variables

    broadcast_variables(variables, root_rank, scope="" if name is None else f"{name}.")
    return list(variables)
