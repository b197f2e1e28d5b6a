"""Gradients of byteps.jax.push_pull, and it under JAX's other transformations, over two workers and a server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

jax = framework("jax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from jobs import Outcomes

RunWorkers = Callable[..., Any]


def _transformations() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    weights = jnp.array([1.0, 10.0, 100.0])

    def loss(x: jax.Array, op: bps.ReduceOp, name: str) -> jax.Array:
        return (bps.push_pull(x, op=op, name=name) * weights * (rank + 1)).sum()

    expected = np.asarray(weights) * sum(range(1, size + 1))
    for number, wrap in enumerate((lambda f: f, jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(f)))):
        for op, share in ((bps.Sum, 1.0), (bps.Average, 1.0 / size)):
            gradient = jax.grad(wrap(lambda x: loss(x, op, f"loss {number}")))(jnp.ones(3))  # noqa: B023
            assert np.allclose(gradient, expected * share)
    with pytest.raises(NotImplementedError, match="Max"):
        jax.grad(lambda x: loss(x, bps.Max, "max"))(jnp.ones(3))

    second = jax.jit(jax.grad(lambda x: jax.grad(lambda y: (bps.push_pull(y, False, "second") ** 3).sum())(x).sum()))
    x = jnp.ones(2) * (rank + 1)
    # Of s^3, where s is the sum of the ranks' y: the sum over ranks of 3 s^2, then that of 6 s, summed twice again.
    assert np.allclose(second(x), 6 * 3 * size**2 * np.ones(2)), second(x)

    # A batch is one tensor.
    batch = jnp.arange(6.0).reshape(2, 3) + rank
    assert np.array_equal(
        jax.vmap(lambda x: bps.push_pull(x, False, "batch"))(batch), 2 * np.arange(6).reshape(2, 3) + 1
    )
    nested = jax.jit(jax.vmap(jax.vmap(lambda x: bps.push_pull(x, False, "nested"), axis_name="inner")))
    assert np.array_equal(nested(batch), 2 * np.arange(6).reshape(2, 3) + 1)
    # The same for all elements of the axis: one of it.
    named = jax.vmap(lambda x: jax.lax.psum(bps.push_pull(jax.lax.pmean(x, "i"), False, "same"), "i"), axis_name="i")
    np.testing.assert_array_equal(named(jnp.arange(3.0) + bps.rank()), [9, 9, 9])
    np.testing.assert_array_equal(jax.jit(named)(jnp.arange(3.0) + bps.rank()), [9, 9, 9])
    per_example = jax.vmap(jax.grad(lambda x: (bps.push_pull(x, False, "per example") ** 2).sum()))(batch)
    assert np.allclose(per_example, 2 * 2 * (2 * np.arange(6).reshape(2, 3) + 1))

    def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = bps.push_pull(carry + x, False, "carry")
        return carry, bps.push_pull(x, False, "each")

    last, each = jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(4.0)))(jnp.ones(()))
    assert last == functools.reduce(lambda carry, x: 2 * (carry + x), range(4), 1.0)
    assert np.array_equal(each, 2 * np.arange(4))
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: bps.push_pull(y, False, "loop"), x))
    assert looped(jnp.ones(())) == 8
    chosen = jax.jit(lambda go, x: jax.lax.cond(go, lambda y: bps.push_pull(y, False, "cond"), lambda y: y, x))
    assert chosen(True, jnp.ones(())) == 2 and chosen(False, jnp.ones(())) == 1

    root = jax.jit(jax.grad(lambda x: (bps.broadcast(x, 1, name="root") * weights * (rank + 1)).sum()))(jnp.ones(3))
    assert np.array_equal(root, expected if rank == 1 else np.zeros(3))


def _gradients_of_pytrees() -> None:
    """Of arrays that travel at the same time, with the numbers of one at a time."""
    bps.init()
    rank = bps.rank()
    params = {"a": jnp.arange(3.0) + rank, "b": jnp.full(3, 2.0 - rank)}

    def at_once(tree: Any, name: str) -> Any:
        return bps.push_pull(tree, False, name)

    def apart(tree: Any, name: str) -> Any:
        return {key: bps.push_pull(leaf, False, f"{name} {key} alone") for key, leaf in tree.items()}

    def loss(params: Any, reduce: Callable[..., Any], name: str) -> jax.Array:
        summed = reduce({"a": params["a"], "b": params["b"] * 2}, name)
        return (summed["a"] * summed["b"] ** 2).sum() * (rank + 1)

    def with_metrics(params: Any, reduce: Callable[..., Any], name: str) -> tuple[jax.Array, Any]:
        value = (params["a"] * params["b"]).sum()
        return value, reduce({"loss": value, "norm": (params["b"] ** 2).sum()}, name)

    def scanned(params: Any, reduce: Callable[..., Any], name: str) -> jax.Array:
        def step(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            carry = reduce(jax.tree_util.tree_map(lambda leaf: leaf * x, carry), name)
            return carry, (carry["a"] * carry["b"]).sum()

        return jax.lax.scan(step, params, jnp.arange(1.0, 4.0))[1].sum() * (rank + 1)

    def batch(params: Any, reduce: Callable[..., Any], name: str) -> Any:
        many = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf, leaf + 1]), params)
        return jax.vmap(jax.grad(functools.partial(loss, reduce=reduce, name=name)))(many)

    kinds: dict[str, Callable[..., Any]] = {
        "grad": jax.grad(loss),
        "value": jax.value_and_grad(loss),
        "metrics": jax.value_and_grad(with_metrics, has_aux=True),
        "scan": jax.grad(scanned),
        "vmap": batch,
        "second": jax.jacrev(jax.grad(loss)),
    }
    for kind, function in kinds.items():
        for number, wrap in enumerate((lambda f: f, jax.jit)):
            name = f"gradients of pytrees {kind} {number}"
            found, expected = (
                wrap(lambda params: function(params, reduce, name))(params)  # noqa: B023
                for reduce in (at_once, apart)
            )
            jax.tree_util.tree_map(np.testing.assert_array_equal, found, expected)
    # Not with each other alone: the sum of both is [1, 3, 5] and 2 * 3, and both ranks' losses go into each gradient.
    gradient = jax.grad(loss)(params, at_once, "known")
    np.testing.assert_array_equal(gradient["a"], 3 * 6.0**2 * np.ones(3))
    np.testing.assert_array_equal(gradient["b"], 3 * 2 * 2 * 6 * np.array([1.0, 3, 5]))


def _adasum_of_a_batch() -> None:
    """Its factors are those of whole tensors, and an element of a batch is one."""
    bps.init()
    batch = jnp.arange(6.0).reshape(3, 2) + bps.rank() * jnp.array([1.0, -2.0])

    def combined(x: jax.Array, name: str) -> jax.Array:
        return bps.push_pull(x, op=bps.Adasum, name=name)

    expected = np.stack([combined(x, "one by one") for x in batch])
    for number, wrap in enumerate((lambda f: f, jax.jit)):
        mapped = wrap(jax.vmap(lambda x: combined(x, f"adasum of a batch {number}")))  # noqa: B023
        np.testing.assert_array_equal(mapped(batch), expected)
    columns = jax.jit(jax.vmap(lambda x: combined(x, "columns"), in_axes=1, out_axes=1))
    np.testing.assert_array_equal(columns(batch.T), expected.T)
    trees = jax.jit(jax.vmap(lambda x: combined({"a": x, "b": -x}, "trees")))(batch)
    np.testing.assert_array_equal(trees["a"], expected)
    np.testing.assert_array_equal(trees["b"], -expected)


def _without_jit() -> None:
    """jax.disable_jit(), by which programs are debugged."""
    bps.init()
    rank = bps.rank()

    def loss(x: jax.Array) -> jax.Array:
        return (bps.push_pull(x * x, average=False, name="debugged") * (rank + 1)).sum()

    x = jnp.arange(3.0)
    with jax.disable_jit():
        value, gradient = jax.jit(jax.value_and_grad(loss))(x)
        rows = jax.vmap(lambda row: bps.push_pull(row, average=False, name="rows"))(jnp.ones((2, 3)))
        assert np.array_equal(bps.push_pull(x + rank, name="by itself"), x + 0.5)
        assert np.array_equal(bps.allgather(x, name="gathered"), np.tile(x, 2))
    assert value == 10 * (rank + 1)
    assert np.array_equal(gradient, 2 * x * 3)
    assert np.array_equal(rows, np.full((2, 3), 2))


BODIES = [
    _transformations,
    _gradients_of_pytrees,
    _adasum_of_a_batch,
    _without_jit,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
