"""DistributedOptimizer for optax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from byteps.arguments import whole_number
from byteps.asynchronous import asynchronous_training, check_asynchronous
from byteps.jax.compression import Compression, Compressor, check_compression
from byteps.jax.devices import AxisName, axes_of
from byteps.jax.names import leaf_names
from byteps.jax.ops import reduce_leaves
from byteps.jax.server_parameters import ServerParameters
from byteps.process_set import ProcessSet, check_process_set, global_process_set
from byteps.reduce_op import Average, ReduceOp, choose_op
from byteps.session import current_session

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    import optax


class AccumulatedState(NamedTuple):
    """The state of an optimizer with backward_passes_per_step > 1."""

    inner: Any  # of the optimizer that is wrapped
    sums: Any  # of the gradients since it was last called; float32 for parameters of 16 bits
    passes: jax.Array  # int32: how many those are


def DistributedOptimizer(
    optimizer: optax.GradientTransformation,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    axis_name: AxisName = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer of optax that gets the gradients of all workers: `update` reduces them, then calls the one given.

        optimizer = bps.DistributedOptimizer(optax.adam(1e-3))
        state = optimizer.init(params)
        updates, state = optimizer.update(gradients, state, params)     # inside of jit

    Each gradient leaves as soon as the program has computed it; those of the first leaves are the most urgent. Wrap the
    whole chain, not a part of it: what clips by a global norm then sees the reduced gradients.

    With BYTEPS_ENABLE_ASYNC=1 the servers keep the parameters, and no rank waits for the gradients of others
    (docs/async.md): `init`, outside of jit, gives them those of rank 0, for which all ranks wait; the updates of
    `update`, which needs `params`, lead to the parameters of the servers.

    Args:
        optimizer: any transformation of gradients.
        compression: of gradients on their way.
        backward_passes_per_step: how many calls of `update` add up their gradients before one reduces the sums (they
            are not divided by that number) and calls `optimizer`; the others return zeros.
        op: the reduction over workers.
        axis_name: inside shard_map or pmap: the axis, or axes, over whose devices to reduce as well.
        name: before the names of the gradients, the same on all ranks. None: "Gradient" for the first optimizer of a
            session, "Gradient.1" for the second and so on, in the order in which they are made.
        process_set: the ranks that take part; this rank is one of them.

    Returns:
        A transformation whose state is that of `optimizer` (an AccumulatedState with backward_passes_per_step > 1).

    Raises:
        ValueError: before init(), or an argument that cannot be used.
        TypeError: an argument of another kind.
        ImportError: optax is not installed.
    """
    import optax

    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        raise TypeError(f"optimizer is {optimizer!r}; it must be a GradientTransformation of optax")
    check_compression(compression)
    check_process_set(process_set)
    chosen = choose_op(op, average=True, adasum=True)
    passes = whole_number("backward_passes_per_step", backward_passes_per_step)
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}; it must be at least 1")
    axes = axes_of(axis_name)
    inner = optax.with_extra_args_support(optimizer)
    asynchronous = asynchronous_training() and current_session().native.info()["size"] > 1
    if asynchronous:
        check_asynchronous(
            chosen,
            compression=compression is not Compression.none,
            axis_name=bool(axes),
            process_set=process_set is not global_process_set,
        )
    # Behind all that may be refused: ranks whose numbers differ do not meet.
    number = current_session().object_number("DistributedOptimizer")
    if name is None:
        name = "Gradient" if number == 0 else f"Gradient.{number}"

    def reduced(gradients: Any) -> Any:
        names, leaves, structure = leaf_names(name, gradients)
        present = [number for number, leaf in enumerate(leaves) if not _is_absent(leaf)]
        results = reduce_leaves(
            [names[number] for number in present],
            [leaves[number] for number in present],
            chosen,
            [-number for number in present],
            compression,
            axes,
            process_set,
        )
        for number, result in zip(present, results):
            leaves[number] = result
        return jax.tree_util.tree_unflatten(structure, leaves)

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return inner.update(reduced(gradients), state, params, **extra)

    init = inner.init
    if asynchronous:
        servers = ServerParameters(inner, f"AsyncParam.{name}")
        init, update = servers.init, servers.update

    if passes == 1:
        return optax.GradientTransformationExtraArgs(init, update)

    def init_accumulated(params: Any) -> AccumulatedState:
        sums = jax.tree_util.tree_map(_zero_sum, params)
        return AccumulatedState(init(params), sums, jnp.zeros([], jnp.int32))

    def update_accumulated(
        gradients: Any, state: AccumulatedState, params: Any = None, **extra: Any
    ) -> tuple[Any, AccumulatedState]:
        totals = jax.tree_util.tree_map(_added, state.sums, gradients)
        sums = jax.tree_util.tree_map(lambda own, total: own if _is_absent(total) else total, state.sums, totals)

        def step() -> tuple[Any, Any, Any]:
            # The optimizer's state has the dtypes of the parameters, and keeps them for lax.cond.
            given = jax.tree_util.tree_map(_as, totals, gradients if params is None else params)
            updates, after = update(given, state.inner, params, **extra)
            return updates, after, jax.tree_util.tree_map(jnp.zeros_like, sums)

        def wait() -> tuple[Any, Any, Any]:
            shapes = jax.eval_shape(step)[0]
            none = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return none, state.inner, sums

        last = state.passes == passes - 1
        updates, after, sums = lax.cond(last, step, wait)
        return updates, AccumulatedState(after, sums, jnp.where(last, 0, state.passes + 1))

    return optax.GradientTransformationExtraArgs(init_accumulated, update_accumulated)


def _zero_sum(param: Any) -> jax.Array:
    """The sum of no gradients of this parameter. In 16 bits it would stop growing: at 256, bfloat16 has no 257."""
    dtype = jnp.result_type(param)
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.zeros_like(param, jnp.float32 if narrow else None)


def _as(total: Any, like: Any) -> Any:
    """The sum, with the dtype of what is given."""
    return total if _is_absent(total) else total.astype(jnp.result_type(like))


def _added(total: jax.Array, gradient: Any) -> Any:
    """Their sum, with the dtype of the total."""
    return gradient if _is_absent(gradient) else jnp.add(total, gradient).astype(total.dtype)


def _is_absent(leaf: Any) -> bool:
    """Whether it is the gradient of a parameter that has none (of integers)."""
    return getattr(leaf, "dtype", None) == jax.dtypes.float0
