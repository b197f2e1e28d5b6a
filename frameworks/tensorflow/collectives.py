"""The op BytepsCollective: what byteps.tensorflow's allgather, reducescatter, alltoall and operations of process sets
are made of. Its gradients are those of Horovod."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from byteps import _native
from byteps.process_set import ProcessSet
from byteps.reduce_op import Average, ReduceOp, Sum
from byteps.session import current_session
from byteps.tensorflow.library import OPS, refuse_xla
from byteps.tensorflow.names import graph_number, step_group, unique_in_graph

import tensorflow as tf


def set_ranks(process_set: ProcessSet) -> tuple[int, ...]:
    """The ranks, as the op takes them; none: all. Raises TypeError, ValueError: see check_process_set."""
    return () if process_set.native() is None else tuple(process_set.ranks or ())


def in_step_group(tensor: tf.Tensor, group: str) -> dict[str, Any]:
    """The attributes of an op of a group of names.step_group(). The shape is [-1] where it is not known before the op
    runs. None of them without a group: kernels would be made for each shape."""
    if not group:
        return {}
    shape = tensor.shape.as_list() if tensor.shape.is_fully_defined() else [-1]
    return {"group": group, "graph": graph_number(), "static_shape": shape}


def collective(
    kind: int,
    tensor: tf.Tensor,
    name: str,
    ranks: Sequence[int],
    priority: int,
    op: int = 0,
    root_rank: int = 0,
    splits: tf.Tensor | None = None,
    group: str = "",
) -> tuple[tf.Tensor, tf.Tensor]:
    """The result, and how many of its rows came from (reduce-scatter: went to) each rank, int64.

    Args:
        kind: _native.ALL_GATHER and so on.
        tensor: this rank's input.
        name: the same on all ranks.
        ranks: of set_ranks().
        priority: larger is sooner.
        op: of reductions.
        root_rank: of broadcasts, a rank of the job.
        splits: rows for each rank, int64; None: see bps_collective_args.
        group: of names.step_group().
    """
    refuse_xla()
    result, rows = OPS.byteps_collective(
        tensor,
        tf.zeros([0], tf.int64) if splits is None else splits,
        kind=kind,
        tensor_name=name,
        op=int(op),
        root_rank=root_rank,
        ranks=list(ranks),
        priority=priority,
        **in_step_group(tensor, group),
    )
    if not tf.executing_eagerly():
        same = kind in (_native.ALL_REDUCE, _native.BROADCAST)
        # Of how many rows only the ranks know.
        known = tensor.shape if same or tensor.shape.rank in (None, 0) else [None, *tensor.shape[1:]]
        result.set_shape(known)
    return result, rows


def checked_rows(result: tf.Tensor, rows: tf.Tensor, expected: Any, message: str) -> tf.Tensor:
    """The result, once it is known that so many rows came from each rank; else InvalidArgumentError, on this rank."""
    check = tf.debugging.assert_equal(rows, tf.cast(expected, tf.int64), message)
    with tf.control_dependencies([check]):
        return tf.identity(result)


def gradient_name(op: Any) -> str:
    """The name of the operation that brings the gradient of `op` back; of each of them, where there are several."""
    return unique_in_graph(tf.compat.as_text(op.get_attr("tensor_name")) + ".gradient")


def of_root(total: tf.Tensor, root_rank: int) -> tf.Tensor:
    """`total` on the root and zeros on the others, where it is used all the same: what a rank does not use TensorFlow
    leaves out, and the others would wait for it."""
    is_root = current_session().native.info()["rank"] == root_rank
    with tf.control_dependencies([total]):
        return tf.where(is_root, total, tf.zeros_like(total))


@tf.RegisterGradient("BytepsCollective")
def _gradient(op: Any, gradient: tf.Tensor, of_rows: tf.Tensor) -> tuple[tf.Tensor, None]:
    """As Horovod's; `of_rows` are whole numbers, which have none."""
    del of_rows
    kind = op.get_attr("kind")
    reduces = kind in (_native.ALL_REDUCE, _native.REDUCE_SCATTER)
    reduction = ReduceOp(op.get_attr("op")) if reduces else Sum
    if reduction not in (Sum, Average):
        raise NotImplementedError(f"a reduction with op={reduction.name} has no gradient; Sum and Average have")
    name = gradient_name(op)
    ranks, priority = op.get_attr("ranks"), op.get_attr("priority")
    shape = tf.shape(op.inputs[0])

    def back(kind: int, gradient: tf.Tensor, **options: Any) -> tf.Tensor:
        return collective(kind, gradient, name, ranks, priority, **options)[0]

    if kind == _native.BROADCAST:
        total = back(_native.ALL_REDUCE, gradient, op=Sum)
        return of_root(total, op.get_attr("root_rank")), None
    if kind == _native.ALL_TO_ALL:
        return tf.reshape(back(kind, gradient, splits=op.outputs[1]), shape), None
    if kind == _native.ALL_GATHER:
        mine = back(_native.REDUCE_SCATTER, gradient, op=Average, splits=op.outputs[1])
        return tf.reshape(mine, shape), None
    if kind == _native.ALL_REDUCE:
        return back(kind, gradient, op=reduction), None
    if reduction is Sum:
        gradient *= tf.cast(len(ranks) or current_session().native.info()["size"], gradient.dtype)
    return tf.reshape(back(_native.ALL_GATHER, gradient), shape), None


@functools.lru_cache(maxsize=256)
def _group_function(kind: int, names: tuple[str, ...], ranks: tuple[int, ...], op: int) -> Any:
    """A graph of several at the same time."""

    # Traced again for other shapes, and then for any: each graph is kept.
    @tf.function(autograph=False, reduce_retracing=True)
    def run_group(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return _each(kind, tensors, names, ranks, op)

    return run_group


def _each(
    kind: int, tensors: Sequence[tf.Tensor], names: Sequence[str], ranks: tuple[int, ...], op: int
) -> list[tf.Tensor]:
    together = step_group(names, kind, int(op), ranks)
    return [
        collective(kind, tensor, name, ranks, -index, op, group=together)[0]
        for index, (tensor, name) in enumerate(zip(tensors, names))
    ]


def group(
    kind: int, tensors: Sequence[tf.Tensor], names: Sequence[str], ranks: tuple[int, ...], op: int = 0
) -> list[tf.Tensor]:
    """The results of several collectives that travel at the same time, also in eager execution."""
    if tf.executing_eagerly() and len(tensors) > 1:
        return list(_group_function(kind, tuple(names), ranks, int(op))(list(tensors)))
    return _each(kind, tensors, names, ranks, op)
