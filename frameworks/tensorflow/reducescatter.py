"""reducescatter: of a reduction over all workers, to each worker its rows. (A row is what the first dimension
counts.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps import _native
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import current_session
from byteps.tensorflow.allgather import rows_of
from byteps.tensorflow.collectives import collective, group, set_ranks
from byteps.tensorflow.compression import Compression, check_compression
from byteps.tensorflow.library import check_device, check_reduction
from byteps.tensorflow.names import group_names, operation_name
from byteps.tensorflow.scaling import scaled

import tensorflow as tf


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all workers and keeps this worker's rows of the result: as even as possible, the first
    workers have one more. Differentiable for Sum and Average, as in Horovod.

    Args:
        tensor: at least one dimension; the same shape and dtype on all ranks.
        device_dense: where the operation is placed.
        compression: one of Compression's.
        op: Average, Sum, Min, Max, Product.
        name: the same on all ranks; None: see byteps.tensorflow.ops.
        process_set: the ranks that take part; this rank is one of them.
        ignore_name_scope: accepted for compatibility: a name given has no scope in front of it here.
        prescale_factor: multiplies the tensor before the reduction.
        postscale_factor: multiplies the result.

    Raises:
        tf.errors.OpError: see byteps.tensorflow.ops.
        ValueError: before init(), an unknown op, a tensor without dimensions, or a process set that the job does not
            know.
        TypeError: something that is no compression, or no device.
        NotImplementedError: Adasum.
    """
    del ignore_name_scope
    current_session()
    check_compression(compression)
    check_device("device_dense", device_dense)
    chosen = choose_op(op, None)
    process_set = check_process_set(process_set)
    with tf.device(device_dense):
        tensor = rows_of("reducescatter", tensor)
        sent, context = compression.compress(scaled(tensor, prescale_factor, postscale_factor))
        check_reduction(chosen, sent)
        given = operation_name("reducescatter", name, "", tensor, process_set)
        reduced, _ = collective(_native.REDUCE_SCATTER, sent, given, set_ranks(process_set), 0, chosen)
        return scaled(compression.decompress(reduced, context), postscale_factor)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """reducescatter of several tensors at the same time."""
    del ignore_name_scope
    current_session()
    check_compression(compression)
    check_device("device_dense", device_dense)
    chosen = choose_op(op, None)
    ranks = set_ranks(check_process_set(process_set))
    with tf.device(device_dense):
        given = [rows_of("grouped_reducescatter", tensor) for tensor in tensors]
        compressed = [compression.compress(scaled(tensor, prescale_factor, postscale_factor)) for tensor in given]
        for sent, _ in compressed:
            check_reduction(chosen, sent)
        names = group_names("reducescatter", name, "", given, process_set)
        reduced = group(_native.REDUCE_SCATTER, [sent for sent, _ in compressed], names, ranks, chosen)
        return [
            scaled(compression.decompress(each, context), postscale_factor)
            for each, (_, context) in zip(reduced, compressed)
        ]
