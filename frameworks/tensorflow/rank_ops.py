"""Who we are, as tensors: for graphs that are written with Horovod's names."""

from __future__ import annotations

from byteps.process_set import ProcessSet, global_process_set, process_set_by_id
from byteps.session import current_session

import tensorflow as tf


def _set(process_set_id: int) -> ProcessSet:
    current_session()
    return process_set_by_id(process_set_id)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set, int32; in a graph a constant, that of the time of tracing. Raises
    ValueError before init(), or for a number that no set has."""
    return tf.constant(_set(process_set_id).size(), tf.int32, name=name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """rank(), int32; otherwise as size_op."""
    return tf.constant(current_session().native.info()["rank"], tf.int32, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """local_size(), int32; otherwise as size_op."""
    return tf.constant(current_session().native.info()["local_size"], tf.int32, name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """local_rank(), int32; otherwise as size_op."""
    return tf.constant(current_session().native.info()["local_rank"], tf.int32, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this rank is in the process set, else 0, int32; otherwise as size_op."""
    process_set = _set(process_set_id)
    included = process_set is global_process_set or process_set.included()
    return tf.constant(int(bool(included)), tf.int32, name=name)
