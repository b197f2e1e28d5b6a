"""Making all workers start from the same variables."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from byteps import _native
from byteps.arguments import root
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.session import current_session
from byteps.tensorflow.collectives import collective, set_ranks
from byteps.tensorflow.gradients import source_names
from byteps.tensorflow.library import OPS, WIRE_TYPES, refuse_xla
from byteps.tensorflow.names import check_scope, unique_in_graph

import tensorflow as tf


def _broadcast_value(value: tf.Tensor, name: str, root_rank: int, priority: int, ranks: tuple[int, ...]) -> tf.Tensor:
    """The root's value, of any dtype but strings and the like."""
    dtype = value.dtype

    def broadcast(sent: tf.Tensor) -> tf.Tensor:
        if ranks:
            return collective(_native.BROADCAST, sent, name, ranks, priority, root_rank=root_rank)[0]
        return OPS.byteps_broadcast(sent, tensor_name=name, root_rank=root_rank, priority=priority)

    if dtype in WIRE_TYPES:
        return broadcast(value)
    if not dtype.is_numpy_compatible or dtype is tf.string:
        raise TypeError(f"a {dtype.name} variable cannot be broadcast; send its value with broadcast_object")
    # Such as uint32, of Keras's random numbers: as bytes.
    return tf.ensure_shape(tf.bitcast(broadcast(tf.bitcast(value, tf.uint8)), dtype), value.shape)


@functools.lru_cache(maxsize=64)
def _broadcast_function(names: tuple[str, ...], root_rank: int, ranks: tuple[int, ...]) -> Any:
    @tf.function(autograph=False)
    def broadcast_all(values: list[tf.Tensor]) -> list[tf.Tensor]:
        return _each(values, names, root_rank, ranks)

    return broadcast_all


def _each(values: Sequence[tf.Tensor], names: Sequence[str], root_rank: int, ranks: tuple[int, ...]) -> list[tf.Tensor]:
    return [
        _broadcast_value(value, name, root_rank, -index, ranks)
        for index, (value, name) in enumerate(zip(values, names))
    ]


def broadcast_values(
    values: Sequence[tf.Tensor], names: Sequence[str], root_rank: int, ranks: tuple[int, ...] = ()
) -> list[tf.Tensor]:
    """The root's values, all at the same time."""
    refuse_xla()
    if tf.executing_eagerly() and len(values) > 1:
        return list(_broadcast_function(tuple(names), root_rank, ranks)(list(values)))
    return _each(values, names, root_rank, ranks)


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    scope: str | ProcessSet = "",
    inplace: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrites every rank's variables with the root's.

    Args:
        variables: tf.Variable, or Keras's; the same on all ranks, in the same order. Of any dtype but strings.
        root_rank: whose values are sent.
        scope: put before each name; or the process set, which is Horovod's third argument.
        inplace: accepted for compatibility.
        process_set: the ranks that take part; the root and this rank are among them.

    Returns:
        In a graph of TensorFlow 1 the op that does it; else None.

    Raises:
        tf.errors.OpError: see byteps.tensorflow.ops.
        TypeError: a variable of a dtype that cannot be sent, no scope, or two process sets.
        ValueError: before init(), or the root is not a rank.
    """
    del inplace
    if isinstance(scope, ProcessSet):
        if process_set is not global_process_set:
            raise TypeError("scope and process_set are both process sets; give one of the two")
        scope, process_set = "", scope
    check_scope(scope)
    session = current_session()
    check_process_set(process_set)
    root_rank = root(session, root_rank, process_set)
    listed = list(variables)
    names = [unique_in_graph(f"{scope}broadcast.{name}") for name in source_names(listed)]
    ranks = set_ranks(process_set)
    values = broadcast_values([tf.convert_to_tensor(variable) for variable in listed], names, root_rank, ranks)
    assigned = [variable.assign(value) for variable, value in zip(listed, values)]
    if tf.executing_eagerly() or tf.inside_function():
        return None
    return tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """In a graph of TensorFlow 1: the op that overwrites all global variables with the root's.

    Raises:
        RuntimeError: in eager execution, where there are no global variables: use broadcast_variables().
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() is for graphs of TensorFlow 1; in eager execution call "
            "broadcast_variables(model.variables, root_rank) and broadcast_variables(optimizer.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites all global variables with the root's when a session begins; for MonitoredTrainingSession."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._op: Any = None

    def begin(self) -> None:
        """Of tf.compat.v1.train.SessionRunHook."""
        if self._op is None or self._op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self._device):
                self._op = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Of tf.compat.v1.train.SessionRunHook."""
        session.run(self._op)
