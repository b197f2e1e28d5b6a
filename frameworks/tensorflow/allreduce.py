"""What Horovod's users call push_pull: allreduce and grouped_allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import ReduceOp
from byteps.tensorflow.compression import Compression, check_compression
from byteps.tensorflow.library import check_device, sendable
from byteps.tensorflow.names import group_names
from byteps.tensorflow.ops import check_op, grouped_push_pull, push_pull
from byteps.tensorflow.scaling import scaled
from byteps.tensorflow.sparse import check_sparse_op, push_pull_slices

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
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """allreduce of several tensors at the same time. tf.IndexedSlices among them are gathered behind the others, one
    after the other in eager execution."""
    del ignore_name_scope
    check_compression(compression)
    check_device("device_dense", device_dense)
    check_device("device_sparse", device_sparse)
    chosen = check_op(op, average)
    process_set = check_process_set(process_set)
    results = [scaled(tensor, prescale_factor, postscale_factor) for tensor in tensors]
    sparse = [index for index, tensor in enumerate(results) if isinstance(tensor, tf.IndexedSlices)]
    for index in sparse:
        check_sparse_op(chosen, sendable(results[index].values).dtype)
    dense = [index for index in range(len(results)) if index not in sparse]
    with tf.device(device_dense):
        reduced = grouped_push_pull(
            [results[index] for index in dense],
            compression=compression,
            op=chosen,
            name=name,
            process_set=process_set,
        )
        for index, tensor in zip(dense, reduced):
            results[index] = scaled(tensor, postscale_factor)
    with tf.device(device_sparse):
        # Numbers of rows differ between ranks, as of allgather.
        names = group_names("allgather", name, "", [results[index].values for index in sparse], process_set)
        for place, (index, given) in enumerate(zip(sparse, names)):
            slices = push_pull_slices(results[index], given, chosen, -len(dense) - place, compression, process_set)
            results[index] = scaled(slices, postscale_factor)
    return results


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
