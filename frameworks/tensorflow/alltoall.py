"""alltoall: from each worker to each worker its rows. (A row is what the first dimension counts.)"""

from __future__ import annotations

from typing import Any

from byteps import _native
from byteps.arguments import splits_fault
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.session import current_session
from byteps.tensorflow.allgather import rows_of
from byteps.tensorflow.collectives import checked_rows, collective, set_ranks
from byteps.tensorflow.compression import Compression, check_compression
from byteps.tensorflow.names import operation_name

import tensorflow as tf


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    scope: str = "",
    recv_splits: Any = None,
    with_size: bool | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Sends each worker its rows of the tensor, and brings those of all workers for this one. Differentiable:
    gradients go the way back.

    Args:
        tensor: at least one dimension, of which the first may differ between ranks; the others and the dtype are the
            same.
        splits: how many rows go to each rank: int32 or int64, one for each, which add up to the tensor's rows. None:
            equal numbers.
        name: the same on all ranks; None: see byteps.tensorflow.ops.
        ignore_name_scope: accepted for compatibility: a name given has no scope in front of it here.
        process_set: the ranks that take part; this rank is one of them.
        scope: put before the name.
        recv_splits: how many rows come from each rank, which is checked; None: whatever comes.
        with_size: whether how many rows came from each rank is returned, too; None: with splits alone.
        compression: one of Compression's.

    Returns:
        The rows for this rank, those of rank 0 first. With with_size: these, and how many came from each rank, in the
        dtype of `splits` (without them int64).

    Raises:
        tf.errors.OpError: see byteps.tensorflow.ops; InvalidArgumentError: the splits do not fit, or what came is not
            what recv_splits say.
        ValueError: before init(), a tensor without dimensions, or a process set that the job does not know.
        TypeError: splits are no whole numbers, or no compression.
    """
    del ignore_name_scope
    current_session()
    process_set = check_process_set(process_set)
    check_compression(compression)
    tensor = rows_of("alltoall", tensor)
    if splits is not None:
        splits = _checked_splits(splits)
    if tf.executing_eagerly():
        _check_rows(tensor, splits, process_set)
    sent, how = compression.compress(tensor)
    given = operation_name("alltoall", name, scope, tensor, process_set)
    ranks = set_ranks(process_set)
    with_size = splits is not None if with_size is None else with_size
    counts = None if splits is None else tf.cast(splits, tf.int64)
    received, rows = collective(_native.ALL_TO_ALL, sent, given, ranks, 0, splits=counts)
    received = compression.decompress(received, how)
    if recv_splits is not None:
        received = checked_rows(received, rows, recv_splits, f"{given}: other rows have come than recv_splits say")
    if not with_size:
        return received
    return received, rows if splits is None else tf.cast(rows, splits.dtype)


def _check_rows(tensor: tf.Tensor, splits: tf.Tensor | None, process_set: ProcessSet) -> None:
    """Refuses splits that do not fit: before the operation has its number, so that the ranks stay in step. Raises
    tf.errors.InvalidArgumentError."""
    rows = None if splits is None else splits.numpy().tolist()
    if fault := splits_fault(rows, int(tensor.shape[0]), process_set.size() or 1):
        raise tf.errors.InvalidArgumentError(None, None, fault)


def _checked_splits(splits: Any) -> tf.Tensor:
    splits = tf.convert_to_tensor(splits)
    if splits.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"splits is a {splits.dtype.name}; it must be int32 or int64")
    if splits.shape.rank != 1 or splits.shape[0] == 0:
        # An empty one would mean the same as none.
        raise ValueError(f"splits has shape {splits.shape}; it must have one dimension, an entry for each rank")
    return splits
