"""push_pull of tf.IndexedSlices: every worker gets the rows of all workers."""

from __future__ import annotations

from typing import Any

from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import Average, ReduceOp, Sum
from byteps.session import current_session
from byteps.tensorflow.allgather import gather_rows
from byteps.tensorflow.collectives import set_ranks

import tensorflow as tf


class _SparseReductionError(NotImplementedError, ValueError):
    """An op that IndexedSlices have not: a ValueError, and Horovod's NotImplementedError."""

    # By this AutoGraph knows that it can make the exception again, with its own words before the message; else what
    # comes out of a tf.function would be of neither kind.
    __init__ = Exception.__init__


def check_sparse_op(op: ReduceOp, dtype: tf.DType) -> None:
    """Raises ValueError, which is a NotImplementedError, too, for what tf.IndexedSlices of this dtype cannot be reduced
    by."""
    if op not in (Sum, Average):
        raise _SparseReductionError(
            f"IndexedSlices can be summed or averaged, not op={op.name}; give sparse_as_dense=True"
        )
    if op is Average and not (dtype.is_floating or dtype.is_complex):
        raise _SparseReductionError(
            f"IndexedSlices of {dtype.name} cannot be averaged: each row would be rounded by itself, and their sum "
            "would not be the average. Take op=Sum, or reduce tf.convert_to_tensor(slices); for gradients give "
            "sparse_as_dense=True"
        )


@tf.custom_gradient
def _gathered(rows: tf.Tensor, size: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The rows. Their gradient is that of a sum over workers, the sum of the workers' gradients; that of an allgather
    is, as Horovod's, their mean."""
    return tf.identity(rows), lambda gradient: (tf.convert_to_tensor(gradient) * size, None)


def push_pull_slices(
    slices: tf.IndexedSlices,
    name: str,
    op: ReduceOp,
    priority: int,
    compression: Any,
    process_set: ProcessSet = global_process_set,
    step_group: str = "",
) -> tf.IndexedSlices:
    """The sum or average as IndexedSlices; an index that several workers have stands there several times, which means
    the sum. `step_group`: of names.step_group(), for this name among others.

    Raises:
        ValueError: another op, or the average of integers; it is a NotImplementedError, too, as Horovod's.
    """
    values = tf.convert_to_tensor(slices.values)
    check_sparse_op(op, values.dtype)
    ranks = set_ranks(process_set)
    sent, context = compression.compress(values)
    count = len(ranks) or current_session().native.info()["size"]
    # The name of a dense tensor: a rank that has one hears so.
    rows = gather_rows(sent, name, priority, ranks, step_group)
    values = compression.decompress(_gathered(rows, tf.cast(count, rows.dtype)), context)
    # Behind the rows, for where these fail no other rank may have indices.
    with tf.control_dependencies([rows]):
        # Of no group: no rank comes to it where the rows have failed.
        indices = gather_rows(tf.convert_to_tensor(slices.indices), f"{name}.indices", priority, ranks)
    if op is Average:
        values = values / tf.cast(count, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
