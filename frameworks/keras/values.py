"""push_pull and broadcast of values: NumPy arrays, numbers and tensors, outside of training steps."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from byteps import array_collectives
from byteps.arguments import root, tensor_name
from byteps.keras.arrays import broadcast_arrays, check_sendable, push_pull_arrays, to_array
from byteps.keras.compression import Compression, choice
from byteps.keras.flavor import is_keras_3
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import current_session


def _rows(value: Any, what: str) -> np.ndarray:
    array = to_array(value)
    if array.ndim == 0:
        raise ValueError(f"{what}: a number has no rows; give it a dimension: numpy.atleast_1d(value)")
    return np.ascontiguousarray(array)


def push_pull(
    value: Any, name: str | None = None, average: bool = True, op: ReduceOp | int | None = None
) -> np.ndarray:
    """Reduces a value over all workers, and waits for it.

    Args:
        value: a number, a NumPy array or a tensor of any backend; not inside a graph.
        name: the same on all ranks; None: numbered, which needs the same order of unnamed calls on all ranks.
        average: with op=None: True for Average, False for Sum.
        op: Sum, Average, Min, Max, Product or Adasum.

    Returns:
        A NumPy array of the value's shape and dtype.

    Raises:
        BytePSError: see byteps.errors.
        ValueError: before init(), an unknown op.
        TypeError: a dtype that cannot be sent.
    """
    chosen = choose_op(op, average, adasum=True)
    return push_pull_arrays([to_array(value)], [None if name is None else tensor_name(name)], chosen)[0]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | int | None = None,
    compression: Any = Compression.none,
) -> np.ndarray:
    """push_pull, as Horovod's users call it, with factors before and behind it.

    Args:
        value: and the rest: see push_pull.
        prescale_factor: multiplies the value before the reduction.
        postscale_factor: multiplies the result.
        compression: accepted for compatibility: one value is not worth it.

    Raises:
        As push_pull; ValueError also for op and average together.
    """
    choice(compression)
    if op is not None and average is not None:
        raise ValueError("both op and average are given; give one of the two")
    chosen = choose_op(op, average, adasum=True)
    given = to_array(value)
    if prescale_factor != 1.0:
        given = (given * prescale_factor).astype(given.dtype)
    reduced = push_pull(given, name, op=chosen)
    return reduced if postscale_factor == 1.0 else (reduced * postscale_factor).astype(reduced.dtype)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> np.ndarray:
    """The root's value, as push_pull takes it, of any dtype; the same shape and dtype on all ranks."""
    session = current_session()
    root_rank = root(session, root_rank)
    array = to_array(value)
    check_sendable(array, name or "the value")  # before it has its number
    called = f"broadcast.noname.{session.number('broadcast')}" if name is None else tensor_name(name)
    return broadcast_arrays([array], [called], root_rank)[0]


def allgather(value: Any, name: str | None = None) -> np.ndarray:
    """The rows of all workers, those of rank 0 first. The number of rows may differ between ranks.

    Raises:
        As push_pull; ValueError also for a value without dimensions.
    """
    rows = _rows(value, name or "allgather")
    return np.array(array_collectives.allgather(rows, name=name))


def reducescatter(value: Any, name: str | None = None, op: ReduceOp | int = Average) -> np.ndarray:
    """This worker's rows of the reduction: as even as possible, the first workers have one more.

    Raises:
        As push_pull; ValueError also for a value without dimensions.
    """
    chosen = choose_op(op, None)
    rows = _rows(value, name or "reducescatter")
    return np.array(array_collectives.reducescatter(rows, op=chosen, name=name))


def broadcast_global_variables(root_rank: int) -> None:
    """For graphs of TensorFlow 1; with Keras use callbacks.BroadcastGlobalVariablesCallback.

    Raises:
        RuntimeError: in eager execution, where there are no global variables.
        ImportError: tf.keras is Keras 3, which has no sessions, and tf_keras is not installed.
    """
    import tensorflow as tf
    from byteps.tensorflow.variables import broadcast_global_variables as of_graph

    operation = of_graph(root_rank)
    keras = importlib.import_module("tf_keras") if is_keras_3(tf.keras) else tf.keras
    with tf.control_dependencies([operation]):
        done = tf.constant(0)
    keras.backend.get_value(done)  # in Keras's session
