"""allgather, reducescatter and alltoall, inside and outside of compiled programs. (A row is what the first dimension
counts.)

Programs are compiled for shapes. So inside of jit all ranks have as many rows, and alltoall sends as many to each; else
every rank gets an error. Outside, where the result is waited for, their numbers may differ. Names, errors and shard_map
are as of push_pull; vmap calls them once for each of its elements, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from byteps import _native, array_collectives
from byteps.arguments import check_reduction, priority_number, tensor_name
from byteps.jax import targets, versions
from byteps.jax.call import Call, device_number, run, sent_array
from byteps.jax.names import gradient_name, operation_name
from byteps.jax.ops import ranks_of
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, ReduceOp, Sum, choose_op
from byteps.session import current_session

import jax
import jax.numpy as jnp


def _call(
    kind: int, name: str, ranks: tuple[int, ...], priority: int, shape: tuple[int, ...], op: int = int(Sum)
) -> Call:
    more = (("kind", kind), ("root", 0), ("ranks", ranks))
    return Call(targets.COLLECTIVE, name, ("op", int(op)), priority, more, shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _collective(call: Call, array: jax.Array, device: jax.Array | None) -> jax.Array:
    return run(call, array, device)


def _forward(call: Call, array: jax.Array, device: jax.Array | None) -> tuple[jax.Array, tuple[Any, ...]]:
    if ReduceOp(call.argument[1]) not in (Sum, Average):
        raise NotImplementedError(
            f"reducescatter with op={ReduceOp(call.argument[1]).name} has no gradient; Sum and Average have"
        )
    # Of the operand its shape alone, as that of an array without memory.
    return _collective(call, array, device), (jnp.zeros((*array.shape, 0), bool), device)


def _backward(call: Call, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[jax.Array, None]:
    """As in Horovod: rows come back to where they are from; those of a gather as the average over the ranks."""
    like, device = kept
    given = dict(call.more)
    kind, ranks, name, shape = given["kind"], given["ranks"], gradient_name(call.name), like.shape[:-1]
    op = ReduceOp(call.argument[1])
    if kind == _native.ALL_GATHER:
        back = _call(_native.REDUCE_SCATTER, name, ranks, call.priority, shape, Average)
    elif kind == _native.ALL_TO_ALL:
        back = _call(kind, name, ranks, call.priority, shape)
    else:
        gradient = gradient * len(ranks) if op is Sum else gradient
        back = _call(_native.ALL_GATHER, name, ranks, call.priority, shape)
    return _collective(back, gradient, device), None


_collective.defvjp(_forward, _backward)


def _checked(function: str, tensor: Any, name: str | None, process_set: ProcessSet) -> tuple[jax.Array, bool]:
    """The array, and whether the operation is part of a program. What is wrong is looked for before the operation gets
    a number, so that the ranks stay in step."""
    current_session()
    check_process_set(process_set)
    array = sent_array(function if name is None else tensor_name(name), tensor)
    if array.ndim == 0:
        raise ValueError(f"{function} of an array without dimensions; give it one: jax.numpy.atleast_1d(array)")
    return array, versions.is_traced(array) or versions.in_program() or device_number() is not None


def _place(process_set: ProcessSet) -> int:
    """This rank's place in the set. Raises ValueError outside of it."""
    return ranks_of(process_set).index(current_session().native.info()["rank"])


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> jax.Array:
    """Every worker's rows, those of rank 0 first. Differentiable (reverse mode): the gradient is the average of the
    workers' gradients of this worker's rows.

    Args:
        tensor: an array of at least one dimension; outside of programs the first may differ between ranks.
        name: the same on all ranks; None: numbered (see byteps.jax.ops).
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Raises:
        XlaRuntimeError: when the result is used. Outside of programs BytePSError, at once.
        ValueError: before init(), an array without dimensions, or a process set that the job does not know.
        TypeError: a dtype that cannot be sent.
    """
    array, inside = _checked("allgather", tensor, name, process_set)
    number = priority_number(priority)
    if not inside:
        options = {"name": name, "process_set": process_set, "priority": number}
        return jnp.array(array_collectives.allgather(np.ascontiguousarray(array), **options))
    ranks = ranks_of(process_set)
    shape = (array.shape[0] * len(ranks), *array.shape[1:])
    with operation_name("allgather", name, tensor, process_set) as given:
        return _collective(_call(_native.ALL_GATHER, given, ranks, number, shape), array, device_number())


def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """This worker's rows of the reduction over all workers: as even as possible, the first workers have one more.
    Differentiable (reverse mode) for Sum and Average, as Horovod's.

    Args:
        tensor: an array of at least one dimension, the same shape and dtype on all ranks.
        op: Average, Sum, Min, Max, Product, BitAnd, BitOr or BitXor.
        name: the same on all ranks; None: numbered (see byteps.jax.ops).
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Raises:
        As allgather; NotImplementedError: Adasum.
    """
    chosen = choose_op(op, None)
    array, inside = _checked("reducescatter", tensor, name, process_set)
    number = priority_number(priority)
    check_reduction(chosen, array.dtype.name)
    if not inside:
        options = {"name": name, "process_set": process_set, "priority": number}
        return jnp.array(array_collectives.reducescatter(np.ascontiguousarray(array), op=chosen, **options))
    ranks = ranks_of(process_set)
    rows, more = divmod(array.shape[0], len(ranks))
    shape = (rows + (_place(process_set) < more), *array.shape[1:])
    with operation_name("reducescatter", name, tensor, process_set) as given:
        return _collective(_call(_native.REDUCE_SCATTER, given, ranks, number, shape, chosen), array, device_number())


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends each worker its rows of the array, and brings those of all workers for this one. Differentiable (reverse
    mode): gradients go the way back.

    Args:
        tensor: an array of at least one dimension.
        splits: how many rows go to each rank, outside of programs; None: equal numbers.
        name: the same on all ranks; None: numbered (see byteps.jax.ops).
        priority: larger is sooner.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        The rows for this rank, those of rank 0 first. With splits: these, and how many came from each rank, int32.

    Raises:
        As allgather; ValueError: rows that cannot be split equally, or splits inside of a program.
    """
    array, inside = _checked("alltoall", tensor, name, process_set)
    number = priority_number(priority)
    ranks = ranks_of(process_set)
    if inside and splits is not None:
        raise ValueError(
            "alltoall takes no splits inside of a program: how many rows come is not known when it is traced"
        )
    if inside and array.shape[0] % len(ranks) != 0:
        raise ValueError(f"alltoall of {array.shape[0]} rows over {len(ranks)} ranks: they cannot be split equally")
    if not inside:
        options = {"name": name, "process_set": process_set, "priority": number}
        received = array_collectives.alltoall(np.ascontiguousarray(array), splits, **options)
        return jnp.array(received) if splits is None else (jnp.array(received[0]), jnp.array(received[1], jnp.int32))
    with operation_name("alltoall", name, tensor, process_set) as given:
        return _collective(_call(_native.ALL_TO_ALL, given, ranks, number, array.shape), array, device_number())
