"""push_pull and broadcast, inside and outside of compiled programs.

Names. Tensors meet by name across the workers; the order in which programs run their operations does not matter.
Operations without a name are numbered: outside of programs in the order of the calls, inside in the order in which they
are traced, which must then be the same on all ranks. Outside of programs a call, with a name or without, may return
only when its result is there: the calls of one thread need the same order on all ranks, or each waits for what another
would call next. A name stands once in a program, outside of loops that are unrolled and of jax.checkpoint, which runs
again what it does not keep: two operations of one name in flight are an error.

Pytrees. Both take arrays and pytrees of arrays, of which each leaf has a name of its own, "name.path.to.leaf".

Arrays. bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64 and complex128, of any
shape, in host memory or on a GPU (docs/gpu.md). Shape and dtype must agree across ranks, or every rank gets an error.

Programs. On the CPU no thread of XLA waits for an operation: others run meanwhile, the rest of the program too. On a
GPU operations follow one another. An operand that the program does not need any more is reduced in place. Errors are
XlaRuntimeError with the library's words, raised where the result is used, or by jax.block_until_ready.

Several devices. Inside shard_map and pmap each device is a worker's part of its own: arrays are reduced with those of
the same device of the other workers; `axis_name` says over which devices of this worker, besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from byteps import _native
from byteps.arguments import check_reduction, priority_number, root, tensor_name
from byteps.jax import targets, together
from byteps.jax.call import Call, check_parts, device_number, run, sent_array
from byteps.jax.compression import Compression, Compressor, check_compression
from byteps.jax.devices import Axes, AxisName, axes_of, own_part, part_name, put_together
from byteps.jax.names import gradient_name, leaf_names, operation_name
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Adasum, Average, ReduceOp, Sum, choose_op
from byteps.session import current_session

import jax
import jax.numpy as jnp


def ranks_of(process_set: ProcessSet) -> tuple[int, ...]:
    """The ranks of a set that was checked, as handlers take them."""
    return tuple(process_set.ranks or ())


def _reduce_call(name: str, op: ReduceOp, priority: int, ranks: tuple[int, ...], asynchronous: bool = False) -> Call:
    """A reduction; without ranks over all. Servers sum parts of tensors of all ranks, which is not all there is."""
    argument = ("op", int(op))
    if not ranks and op is not Adasum:
        return Call(targets.PUSH_PULL, name, argument, priority, (("asynchronous", int(asynchronous)),))
    ranks = ranks or ranks_of(global_process_set)
    return Call(
        targets.COLLECTIVE, name, argument, priority, (("kind", _native.ALL_REDUCE), ("root", 0), ("ranks", ranks))
    )


def _set_ranks(process_set: Any) -> tuple[int, ...]:
    """The ranks; none of the set of all. Raises TypeError, ValueError."""
    checked = check_process_set(process_set)
    return () if checked is global_process_set else ranks_of(checked)


# The gradient of a sum over workers is the sum of the workers' gradients.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _push_pull(call: Call, array: jax.Array, device: jax.Array | None) -> jax.Array:
    return run(call, array, device)


def _push_pull_forward(call: Call, array: jax.Array, device: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    if call.argument[1] not in (Sum, Average):
        raise NotImplementedError(
            f"push_pull with op={ReduceOp(call.argument[1]).name} has no gradient; Sum and Average have"
        )
    return _push_pull(call, array, device), device


def _push_pull_backward(call: Call, device: jax.Array | None, gradient: jax.Array) -> tuple[jax.Array, None]:
    # Not run: the gradient may be differentiated again.
    return _push_pull(call._replace(name=gradient_name(call.name)), gradient, device), None


_push_pull.defvjp(_push_pull_forward, _push_pull_backward)


def add_to_servers(name: str, change: Any, priority: int) -> jax.Array:
    """What the servers have of this name once `change` is added: in asynchronous training (docs/async.md)."""
    return run(_reduce_call(name, Sum, priority, (), asynchronous=True), sent_array(name, change), device_number())


@contextmanager
def _named_arrays(
    kind: str, name: str | None, tree: Any, process_set: ProcessSet, op: ReduceOp | None = None
) -> Iterator[tuple[list[str], list[jax.Array], Any]]:
    """A name for each leaf of a call's argument, the leaves as arrays, and the structure. What cannot be sent, or not
    be reduced by `op`, is refused before the call gets a number, so that the ranks stay in step. Raises TypeError,
    ValueError."""
    current_session()
    check_process_set(process_set)
    names, leaves, structure = leaf_names(kind if name is None else tensor_name(name), tree)
    arrays = [sent_array(*each) for each in zip(names, leaves)]
    device = device_number()
    for each, array in zip(names, arrays):
        check_parts(each, array, device)
        if op is not None:
            check_reduction(op, array.dtype.name)
    with operation_name(kind, name, tree, process_set) as given:
        yield leaf_names(given, tree)[0], arrays, structure


def _check_axes(axes: Axes, op: ReduceOp) -> None:
    if axes and op is Adasum:
        raise NotImplementedError("op=Adasum combines workers, and not their devices: give no axis_name")


def reduce_leaves(
    names: Sequence[str],
    leaves: Sequence[Any],
    op: ReduceOp,
    priorities: Sequence[int],
    compression: type[Compressor],
    axes: Axes = (),
    process_set: ProcessSet = global_process_set,
) -> list[jax.Array]:
    """push_pull of arrays that travel at the same time, with arguments that were checked."""
    _check_axes(axes, op)
    if not leaves:
        return []
    device = device_number()
    reduced = [sent_array(*each) for each in zip(names, leaves)]
    # Of nothing there is nothing to reduce; and XLA has no device for an operation on what every device knows.
    sent = [number for number, array in enumerate(reduced) if device is None or array.size > 0]
    compressed = [compression.compress(own_part(axes, op, reduced[n]) if axes else reduced[n]) for n in sent]
    parts, computed = together.start([part for part, _ in compressed])
    for number, part, (_, context) in zip(sent, parts, compressed):
        call = _reduce_call(part_name(axes, names[number]), op, priorities[number], _set_ranks(process_set))
        received = together.after(computed, _push_pull(call, part, device))
        result = compression.decompress(received, context)
        reduced[number] = put_together(axes, op, result, reduced[number]) if axes else result
    return reduced


def push_pull(
    tensor: Any,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    axis_name: AxisName = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces an array, or each array of a pytree, over all workers.

    Works outside and inside of jit, grad (reverse mode, for Sum and Average: the gradient is the push_pull of the
    gradients), vmap (of the whole batch at once; with Adasum of each element, one after another), scan, cond, shard_map
    and pmap.

    Args:
        tensor: an array or a pytree of arrays: the same structure, shapes and dtypes on all ranks.
        average: with op=None: True for Average, False for Sum.
        name: the same on all ranks; None: numbered (see the module).
        version: accepted for compatibility; the library counts the rounds of a tensor itself.
        priority: larger is sooner.
        compression: Compression.none, Compression.fp16 or Compression.bf16.
        op: Sum, Average, Min, Max, Product, BitAnd, BitOr, BitXor or Adasum.
        axis_name: inside shard_map or pmap: the axis, or axes, over whose devices to reduce as well. Average then
            divides by the number of all devices.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        Arrays of the same shapes and dtypes; the same bits on all ranks.

    Raises:
        XlaRuntimeError: when the result is used: what the library says (another rank's shape or dtype differs, a
            member is gone, a deadline).
        ValueError: before init(), an unknown op, or one that the dtype does not have, a name that cannot be one.
        TypeError: a dtype that cannot be sent, an array of NumPy whose values are beyond those of the 32 bits that
            JAX makes of 64 without jax_enable_x64, a priority that is no whole number, or something that
            is no compression.
    """
    del version
    check_compression(compression)
    chosen = choose_op(op, average, adasum=True)
    number = priority_number(priority)
    axes = axes_of(axis_name)
    _check_axes(axes, chosen)
    with _named_arrays("push_pull", name, tensor, process_set, chosen) as (names, arrays, structure):
        priorities = [number] * len(arrays)
        reduced = reduce_leaves(names, arrays, chosen, priorities, compression, axes, process_set)
    return jax.tree_util.tree_unflatten(structure, reduced)


# The root's input has reached every output, the inputs of the others none.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _broadcast(call: Call, array: jax.Array, device: jax.Array | None) -> jax.Array:
    return run(call, array, device)


def _broadcast_forward(call: Call, array: jax.Array, device: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    return _broadcast(call, array, device), device


def _broadcast_backward(call: Call, device: jax.Array | None, gradient: jax.Array) -> tuple[jax.Array, None]:
    back = _reduce_call(gradient_name(call.name), Sum, call.priority, dict(call.more).get("ranks", ()))
    total = _push_pull(back, gradient, device)
    is_root = current_session().native.info()["rank"] == call.argument[1]
    # (Used on all ranks: what a rank does not use it leaves out, and the others would wait for it.)
    return jnp.where(is_root, total, jnp.zeros_like(total)), None


_broadcast.defvjp(_broadcast_forward, _broadcast_backward)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Copies the root's array, or each array of its pytree, to every rank. Works where push_pull does.

    Inside shard_map and pmap each device gets what the same device of the root has.

    Args:
        tensor: an array or a pytree of arrays: the same structure, shapes and dtypes on all ranks.
        root_rank: whose values are sent: a rank of the job, also with a process set.
        name: the same on all ranks; None: numbered (see the module).
        priority: larger is sooner.
        process_set: the ranks that take part; the root and this rank are among them.

    Raises:
        XlaRuntimeError, TypeError: as push_pull.
        ValueError: before init(), or the root is not a rank, or not one of the set.
    """
    session = current_session()
    root_rank = root(session, root_rank, check_process_set(process_set))
    number = priority_number(priority)
    device = device_number()
    target, more = targets.BROADCAST, ()
    if ranks := _set_ranks(process_set):
        target, more = targets.COLLECTIVE, (("kind", _native.BROADCAST), ("op", 0), ("ranks", ranks))
    with _named_arrays("broadcast", name, tensor, process_set) as (names, arrays, structure):
        calls = [Call(target, each, ("root", root_rank), number, more) for each in names]
        sent = [_broadcast(call, array, device) for call, array in zip(calls, arrays)]
    return jax.tree_util.tree_unflatten(structure, sent)
