"""allgather: every worker gets the rows of all workers."""

from __future__ import annotations

from typing import Any

from byteps.arguments import priority_number
from byteps.reduce_op import Sum
from byteps.session import current_session
from byteps.tensorflow.library import OPS, refuse_xla
from byteps.tensorflow.names import operation_name

import tensorflow as tf


def _wire_rows(rows: tf.Tensor) -> tf.Tensor:
    """The least of 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... that is not less than `rows`.

    The job remembers each shape that a name was used with; rows that differ at every step must not make a new one each
    time. At most a quarter is sent for nothing.
    """
    # Of 5 to 8 rows the unit is 1, of 9 to 16 it is 2, and so on.
    logarithm = tf.math.log(tf.cast(tf.maximum(rows, 1), tf.float64)) / tf.math.log(tf.constant(2.0, tf.float64))
    unit = tf.cast(2.0 ** tf.maximum(tf.math.ceil(logarithm - 1e-12) - 3.0, 0.0), tf.int64)
    return (rows + unit - 1) // unit * unit


def _padded(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor with rows of zeros behind it, as many as it is sent with."""
    shape = tf.shape(tensor, out_type=tf.int64)
    missing = tf.concat([[_wire_rows(shape[0]) - shape[0]], shape[1:]], 0)
    return tf.concat([tensor, tf.zeros(missing, tensor.dtype)], 0)


def _gather(tensor: tf.Tensor, counts: tf.Tensor, rank: int, size: int, name: str, priority: int) -> tf.Tensor:
    """The rows of all workers, of which there are `counts`."""
    row = tf.shape(tensor, out_type=tf.int64)[1:]
    parts = []
    for of in range(size):
        sent = _padded(tensor) if of == rank else tf.zeros(tf.concat([[_wire_rows(counts[of])], row], 0), tensor.dtype)
        part = OPS.byteps_broadcast(sent, tensor_name=f"{name}.of.{of}", root_rank=of, priority=priority)
        parts.append(part[: counts[of]])
    gathered = tf.concat(parts, 0)
    gathered.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
    return gathered


def gather_rows(tensor: tf.Tensor, name: str, priority: int = 0) -> tf.Tensor:
    """The rows of all workers under this name, those of rank 0 first."""
    refuse_xla()
    info = current_session().native.info()
    rank, size = info["rank"], info["size"]
    if size == 1:
        return tf.identity(tensor)
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    mine = tf.one_hot(rank, size, on_value=rows, off_value=tf.constant(0, tf.int64), dtype=tf.int64)
    counts = OPS.byteps_push_pull(mine, tensor_name=f"{name}.rows", op=int(Sum), priority=priority)

    @tf.custom_gradient
    def gather(own: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            """Every worker has used the rows of all; the own ones get what all have to say of them."""
            sent = _padded(tf.convert_to_tensor(upstream))
            total = OPS.byteps_push_pull(sent, tensor_name=f"{name}.gradient", op=int(Sum), priority=priority)
            first = tf.reduce_sum(counts[:rank])
            return total[first : first + counts[rank]]

        return _gather(own, counts, rank, size, name, priority), gradient

    return gather(tensor)


def allgather(tensor: Any, name: str | None = None, scope: str = "", priority: int = 0) -> tf.Tensor:
    """Every worker's rows, those of rank 0 first. Differentiable.

    Args:
        tensor: at least one dimension, of which the first may differ between ranks; the others and the dtype are the
            same. Rows travel from each rank to all others as broadcasts, padded by at most a quarter.
        name: the same on all ranks; None: see byteps.tensorflow.ops.
        scope: put before the name.
        priority: larger is sooner.

    Raises:
        tf.errors.OpError: see byteps.tensorflow.ops.
        ValueError: before init(), or a tensor without dimensions.
    """
    current_session()
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ValueError("allgather of a tensor without dimensions; give it one: tf.reshape(tensor, [1])")
    return gather_rows(tensor, operation_name("allgather", name, scope, tensor), priority_number(priority))
