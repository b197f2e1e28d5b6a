"""allgather: the rows of all workers, to all. (A row is what the first dimension counts.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps import _native
from byteps.arguments import priority_number
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.session import current_session
from byteps.tensorflow.collectives import checked_rows, collective, group, set_ranks
from byteps.tensorflow.library import sendable
from byteps.tensorflow.names import group_names, operation_name

import tensorflow as tf


def rows_of(function: str, tensor: Any) -> tf.Tensor:
    """The argument of an operation on rows. Raises ValueError for a scalar, TypeError for a dtype that cannot be
    sent."""
    tensor = sendable(tensor)
    if tensor.shape.rank == 0:
        raise ValueError(f"{function} of a tensor without dimensions; give it one: tf.reshape(tensor, [1])")
    return tensor


def gather_rows(
    tensor: tf.Tensor, name: str, priority: int = 0, ranks: tuple[int, ...] = (), step_group: str = ""
) -> tf.Tensor:
    """The rows of all workers under this name, those of rank 0 first. `step_group`: of names.step_group()."""
    return collective(_native.ALL_GATHER, tensor, name, ranks, priority, group=step_group)[0]


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    scope: str = "",
    priority: int = 0,
    same_shape: bool = False,
) -> tf.Tensor:
    """Every worker's rows, those of rank 0 first. Differentiable: as in Horovod the gradient is the average of the
    workers' gradients of this worker's rows.

    Args:
        tensor: at least one dimension, of which the first may differ between ranks; the others and the dtype are the
            same.
        name: the same on all ranks; None: see byteps.tensorflow.ops.
        ignore_name_scope: accepted for compatibility: a name given has no scope in front of it here.
        process_set: the ranks that take part; this rank is one of them.
        scope: put before the name.
        priority: larger is sooner.
        same_shape: all ranks have as many rows, which is checked; nothing is faster by it.

    Raises:
        tf.errors.OpError: see byteps.tensorflow.ops; InvalidArgumentError: `same_shape`, and the ranks differ.
        ValueError: before init(), a tensor without dimensions, or a process set that the job does not know.
        TypeError: a dtype that cannot be sent.
    """
    del ignore_name_scope
    current_session()
    process_set = check_process_set(process_set)
    tensor = rows_of("allgather", tensor)
    priority = priority_number(priority)
    given = operation_name("allgather", name, scope, tensor, process_set)
    result, rows = collective(_native.ALL_GATHER, tensor, given, set_ranks(process_set), priority)
    if not same_shape:
        return result
    message = f"{given}: same_shape=True, and the ranks have different numbers of rows"
    return checked_rows(result, rows, tf.fill(tf.shape(rows), tf.shape(tensor)[0]), message)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """allgather of several tensors at the same time."""
    del ignore_name_scope
    current_session()
    ranks = set_ranks(check_process_set(process_set))
    given = [rows_of("grouped_allgather", tensor) for tensor in tensors]
    return group(_native.ALL_GATHER, given, group_names("allgather", name, "", given, process_set), ranks)
