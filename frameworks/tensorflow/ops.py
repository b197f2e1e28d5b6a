"""push_pull and broadcast of tensors, in eager execution and in graphs.

Names. Tensors meet by name across the workers; in graphs, with names neither tracing nor execution needs the same
order. An operation without a name gets that of its tensor in a graph, where several of one are numbered as they are
traced, and a number in eager execution; the numbers need the same order of these calls on all ranks. In eager execution
a call, with a name or without, returns when its result is there: the calls of one thread need the same order on all
ranks, or each waits for what another would call next. Two operations in flight cannot share a name; iterations
of a loop wait for each other, with the exceptions of docs/frameworks/tensorflow.md.

Tensors. uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, bool, complex64 and complex128, of any
shape. Shape and dtype must agree across ranks, or every rank gets an error. Tensors of a GPU are copied through host
memory by TensorFlow.

Errors are TensorFlow's own: tf.errors.UnavailableError (a member of the job died), tf.errors.FailedPreconditionError
(the ranks disagree, or init() was not called), tf.errors.DeadlineExceededError (names who did not come) and so on, with
the library's message. What Python raises is TypeError, ValueError or BytePSError; in a tf.function that AutoGraph
converts a BytePSError (that init() was not called) arrives as AutoGraph's StagingError, with the same words.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from byteps import _native
from byteps.arguments import priority_number, root
from byteps.errors import UnimplementedError
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Adasum, Average, ReduceOp, Sum, choose_op
from byteps.session import current_session
from byteps.tensorflow.collectives import collective, gradient_name, in_step_group, of_root, set_ranks
from byteps.tensorflow.compression import Compression, check_compression
from byteps.tensorflow.library import OPS, check_device, check_reduction, refuse_xla, sendable
from byteps.tensorflow.names import group_names, operation_name, step_group

import tensorflow as tf


def check_op(op: ReduceOp | int | None, average: bool | None) -> ReduceOp:
    """The reduction that `op` and `average` ask for. Raises ValueError if both are given, TypeError for a reduction
    that stands in the place of `average`."""
    if op is not None and average is not None:
        raise ValueError("both op and average are given; give one of the two")
    return choose_op(op, average, adasum=True)


def _reduce(
    tensor: tf.Tensor, name: str, op: ReduceOp, priority: int, compression: Any, ranks: tuple[int, ...], group: str
) -> tf.Tensor:
    refuse_xla()
    sent, context = compression.compress(tensor)
    return compression.decompress(_reduce_sent(sent, name, op, priority, ranks, group), context)


def _reduce_sent(
    sent: tf.Tensor, name: str, op: ReduceOp, priority: int, ranks: tuple[int, ...], group: str = ""
) -> tf.Tensor:
    if ranks or op is Adasum:  # servers sum parts of tensors, of all ranks
        return collective(_native.ALL_REDUCE, sent, name, ranks, priority, op, group=group)[0]
    return OPS.byteps_push_pull(sent, tensor_name=name, op=int(op), priority=priority, **in_step_group(sent, group))


@tf.RegisterGradient("BytepsPushPull")
def _push_pull_gradient(op: Any, gradient: tf.Tensor) -> tf.Tensor:
    """The gradient of a sum over workers is the sum of the workers' gradients."""
    reduction = ReduceOp(op.get_attr("op"))
    if reduction not in (Sum, Average):
        raise NotImplementedError(f"push_pull with op={reduction.name} has no gradient; Sum and Average have")
    name = gradient_name(op)
    return OPS.byteps_push_pull(gradient, tensor_name=name, op=int(reduction), priority=op.get_attr("priority"))


@tf.RegisterGradient("BytepsBroadcast")
def _broadcast_gradient(op: Any, gradient: tf.Tensor) -> tf.Tensor:
    """The root's input reached every output, the inputs of the others none."""
    total = OPS.byteps_push_pull(gradient, tensor_name=gradient_name(op), op=int(Sum), priority=op.get_attr("priority"))
    return of_root(total, op.get_attr("root_rank"))


def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | int | None = None,
    enable_async: bool = False,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces `tensor` over all workers. Differentiable for Sum and Average.

    Args:
        tensor: a tensor, a variable or what can be converted to one; or tf.IndexedSlices, of which every worker gets
            the rows of all workers (Sum, and Average of what are no integers). Shape and dtype are the same on all
            ranks; of IndexedSlices the number of rows may differ.
        scope: put before the name.
        average: with op=None: True (or None) for Average, False for Sum. Integers are rounded towards minus infinity.
        device_dense: where the operation is placed.
        device_sparse: the same for IndexedSlices.
        compression: one of Compression's.
        op: Sum, Average, Min, Max, Product; Adasum for floats; BitAnd, BitOr, BitXor for integers and bools.
        enable_async: True is refused: asynchronous training is DistributedOptimizer's (docs/async.md).
        name: the same on all ranks; None: see the module.
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        A tensor of the same shape and dtype, or IndexedSlices; the same bits on all ranks.

    Raises:
        tf.errors.OpError: see the module.
        ValueError: op and average are both given, an unknown op, one that IndexedSlices have not, a name that cannot be
            one; eager before init().
        TypeError: a dtype that cannot be sent, a priority that is no whole number, something that is no compression,
            no device or no scope.
    """
    check_compression(compression)
    check_device("device_dense", device_dense)
    check_device("device_sparse", device_sparse)
    chosen = check_op(op, average)
    priority = priority_number(priority)
    if enable_async:
        raise UnimplementedError(
            "enable_async: asynchronous training is DistributedOptimizer's, with BYTEPS_ENABLE_ASYNC=1"
        )
    process_set = check_process_set(process_set)
    refuse_xla()
    # All that may fail, before the operation has its number.
    if isinstance(tensor, tf.IndexedSlices):
        from byteps.tensorflow.sparse import check_sparse_op, push_pull_slices

        check_sparse_op(chosen, sendable(tensor.values).dtype)
        with tf.device(device_sparse):
            given = operation_name("push_pull", name, scope, tensor.values, process_set)
            return push_pull_slices(tensor, given, chosen, priority, compression, process_set)
    with tf.device(device_dense):
        tensor = sendable(tensor)
        sent, context = compression.compress(tensor)
        check_reduction(chosen, sent)
        given = operation_name("push_pull", name, scope, tensor, process_set)
        reduced = _reduce_sent(sent, given, chosen, priority, set_ranks(process_set))
        return compression.decompress(reduced, context)


@functools.lru_cache(maxsize=256)
def _group_function(
    names: tuple[str, ...], op: ReduceOp, priorities: tuple[int, ...], compression: Any, ranks: tuple[int, ...]
) -> Any:
    """A graph that reduces its arguments at the same time."""

    # Traced again for other shapes, and then for any: each graph is kept.
    @tf.function(autograph=False, reduce_retracing=True)
    def reduce_group(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return _reduce_each(tensors, names, op, priorities, compression, ranks)

    return reduce_group


def _reduce_each(
    tensors: Sequence[tf.Tensor],
    names: Sequence[str],
    op: ReduceOp,
    priorities: Sequence[int],
    compression: Any,
    ranks: tuple[int, ...],
    group: str = "",
) -> list[tf.Tensor]:
    group = group or step_group(names, int(op), ranks)
    return [
        _reduce(tensor, name, op, priority, compression, ranks, group)
        for tensor, name, priority in zip(tensors, names, priorities)
    ]


def reduce_named(
    tensors: Sequence[tf.Tensor],
    names: Sequence[str],
    op: ReduceOp,
    priorities: Sequence[int],
    compression: Any,
    ranks: tuple[int, ...] = (),
    group: str = "",
) -> list[tf.Tensor]:
    """Reduces tensors under these names, at the same time in eager execution, too. `group`: of names.step_group(), of
    these and other operations; else it is of these."""
    if tf.executing_eagerly() and len(tensors) > 1:
        return list(_group_function(tuple(names), op, tuple(priorities), compression, ranks)(list(tensors)))
    return _reduce_each(tensors, names, op, priorities, compression, ranks, group)


def grouped_push_pull(
    tensors: Sequence[Any],
    scope: str = "",
    average: bool | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | int | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduces several tensors at the same time; the first is the most urgent. Otherwise as push_pull.

    Raises:
        As push_pull.
    """
    check_compression(compression)
    chosen = check_op(op, average)
    priority = priority_number(priority)
    converted = [sendable(tensor) for tensor in tensors]
    for tensor in converted:
        check_reduction(chosen, tensor)
    if tf.executing_eagerly():
        current_session()
    process_set = check_process_set(process_set)
    names = group_names("push_pull", name, scope, converted, process_set)
    priorities = range(priority, priority - len(converted), -1)
    return reduce_named(converted, names, chosen, priorities, compression, set_ranks(process_set))


@tf.custom_gradient
def _divided_backwards(tensor: tf.Tensor, size: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The tensor, whose gradient is divided by the size."""
    return tf.identity(tensor), lambda gradient: (tf.convert_to_tensor(gradient) / size, None)


def broadcast(
    tensor: Any,
    root_rank: int,
    scope: str = "",
    name: str | None = None,
    is_variable: bool = True,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    gradient_op: ReduceOp = Sum,
) -> tf.Tensor:
    """Copies the root's `tensor` to every rank. Differentiable.

    Args:
        tensor: the same shape and dtype on all ranks.
        root_rank: whose values are sent: a rank of the job, also with a process set.
        scope: put before the name.
        name: the same on all ranks; None: see the module.
        is_variable: accepted for compatibility.
        priority: larger is sooner.
        process_set: the ranks that take part; the root and this rank are among them.
        gradient_op: what the root's gradient is of the gradients of all ranks; that of the others is zero. Sum, as in
            BytePS, or Average, as in Horovod.

    Raises:
        tf.errors.OpError: see the module.
        ValueError: before init(), the root is not a rank, or not one of the set, or another gradient_op.
        TypeError: a dtype that cannot be sent, no scope, or a process set in the place of `is_variable`.
    """
    if isinstance(is_variable, ProcessSet):
        raise TypeError(f"is_variable is {is_variable!r}; give a process set by name: process_set=...")
    if gradient_op not in (Average, Sum):
        raise ValueError(f"gradient_op is {gradient_op!r}; it must be Average or Sum")
    refuse_xla()
    session = current_session()
    process_set = check_process_set(process_set)
    root_rank = root(session, root_rank, process_set)
    tensor = sendable(tensor)
    priority = priority_number(priority)
    given = operation_name("broadcast", name, scope, tensor, process_set)
    ranks = set_ranks(process_set)
    if gradient_op is Average and (tensor.dtype.is_floating or tensor.dtype.is_complex):
        # The name above is that of the tensor itself.
        tensor = _divided_backwards(tensor, tf.cast(process_set.size(), tensor.dtype))
    if ranks:
        return collective(_native.BROADCAST, tensor, given, ranks, priority, root_rank=root_rank)[0]
    return OPS.byteps_broadcast(tensor, tensor_name=given, root_rank=root_rank, priority=priority)
