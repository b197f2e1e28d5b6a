"""What Horovod's users call push_pull: allreduce and grouped_allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import ReduceOp
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.library import check_device
from byteps.tensorflow.ops import check_op, grouped_push_pull, push_pull
from byteps.tensorflow.scaling import scaled

import tensorflow as tf


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
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """push_pull with factors before and behind it.

    Args:
        tensor: and the rest: see push_pull.
        prescale_factor: multiplies the tensor before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part; this rank is one of them.
        ignore_name_scope: accepted for compatibility: a name given has no scope in front of it here.
    """
    del ignore_name_scope
    reduced = push_pull(
        scaled(tensor, prescale_factor, postscale_factor),
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        op=check_op(op, average),
        name=name,
        process_set=process_set,
    )
    return scaled(reduced, postscale_factor)


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
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """allreduce of several tensors at the same time. Raises ValueError for tf.IndexedSlices."""
    del ignore_name_scope
    check_device("device_dense", device_dense)
    check_device("device_sparse", device_sparse)
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise ValueError("grouped_allreduce takes no tf.IndexedSlices; reduce them one by one, or as dense tensors")
    with tf.device(device_dense):
        reduced = grouped_push_pull(
            [scaled(tensor, prescale_factor, postscale_factor) for tensor in tensors],
            compression=compression,
            op=check_op(op, average),
            name=name,
            process_set=process_set,
        )
        return [scaled(tensor, postscale_factor) for tensor in reduced]


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Overwrites every rank's variables with the root's, and returns them. In a graph of TensorFlow 1: their values
    behind that, which a session is to run."""
    from byteps.tensorflow.variables import broadcast_variables

    listed = list(variables)
    scope = "" if name is None else f"{name}."
    operation = broadcast_variables(listed, root_rank, scope=scope, process_set=process_set)
    if operation is None:
        return listed
    # Nothing in such a graph runs but what a result depends on.
    with tf.control_dependencies([operation]):
        return [tf.identity(variable) for variable in listed]
