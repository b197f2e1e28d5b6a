"""byteps.jax.DistributedOptimizer: two workers train as one process does on the double batch, bit for bit alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

jax = framework("jax")
optax = framework("optax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from jobs import Outcomes

RunWorkers = Callable[..., Any]
Params = dict[str, Any]


def _data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    return generator.standard_normal((rows, 6)).astype(np.float32), generator.standard_normal(rows).astype(np.float32)


def _start(seed: int) -> Params:
    keys = jax.random.split(jax.random.key(seed), 2)
    return {
        "first": {"w": jax.random.normal(keys[0], (6, 5)), "b": jnp.zeros(5)},
        "second": [jax.random.normal(keys[1], (5,))],
    }


def _loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    return jnp.mean((hidden @ params["second"][0] - y) ** 2)


def _train(optimizer: Any, params: Params, x: np.ndarray, y: np.ndarray, steps: int = 5) -> Params:
    state = optimizer.init(params)

    @jax.jit
    def step(params: Params, state: Any, x: jax.Array, y: jax.Array) -> tuple[Params, Any]:
        gradients = jax.grad(_loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state, x, y)
    return params


def _close(a: Params, b: Params, tolerance: float = 1e-5) -> None:
    jax.tree_util.tree_map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


def _same_on_all_ranks(params: Params) -> None:
    for leaf in jax.tree_util.tree_leaves(params):
        theirs = np.asarray(bps.broadcast(leaf, 0))
        assert theirs.tobytes() == np.asarray(leaf).tobytes()


def _as_one_process_with_the_double_batch() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    x, y = _data(8 * size)
    for make in (
        lambda: optax.sgd(0.1, momentum=0.9),
        lambda: optax.adam(0.01),
        lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01)),
        lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
    ):
        params = bps.broadcast_parameters(_start(rank), 0)
        optimizer = bps.DistributedOptimizer(make())
        assert jax.tree_util.tree_structure(optimizer.init(params)) == jax.tree_util.tree_structure(
            make().init(params)
        ), "the state is the optimizer's own"
        mine = _train(optimizer, params, x[rank::size], y[rank::size])
        _same_on_all_ranks(mine)
        _close(mine, _train(make(), _start(0), x, y))


def _accumulates() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    x, y = _data(8 * size)
    optimizer = bps.DistributedOptimizer(optax.adam(0.01), backward_passes_per_step=3)
    params = _start(0)
    mine = _train(optimizer, params, x[rank::size], y[rank::size], steps=2)
    _close(mine, params, 0)
    mine = _train(optimizer, params, x[rank::size], y[rank::size], steps=6)
    _same_on_all_ranks(mine)
    summed = optax.MultiSteps(optax.chain(optax.scale(3.0), optax.adam(0.01)), 3)  # which averages
    _close(mine, _train(summed, params, x, y, steps=6), 1e-4)


def _accumulates_other_dtypes() -> None:
    """Gradients of another dtype than their parameters; and of whole numbers, which have none."""
    bps.init()
    params = {"half": jnp.ones(3, jnp.bfloat16), "count": jnp.arange(2), "whole": jnp.ones(2)}
    inner = optax.masked(optax.sgd(0.5), {"half": True, "count": False, "whole": True})
    optimizer = bps.DistributedOptimizer(inner, backward_passes_per_step=2)

    def loss(params: Any) -> jax.Array:
        return params["half"].astype(jnp.float32).sum() + params["whole"].sum() + params["count"].sum()

    def one(carried: Any, _: Any) -> tuple[Any, None]:
        gradients = jax.grad(loss, allow_int=True)(params)
        gradients["half"] = gradients["half"].astype(jnp.float32)
        updates, state = optimizer.update(gradients, carried[1], params)
        total = jax.tree_util.tree_map(lambda own, update: own + update, carried[0], {**updates, "count": 0})
        return (total, state), None

    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    carried, _ = jax.jit(lambda start: jax.lax.scan(one, start, None, length=4))((zeros, optimizer.init(params)))
    np.testing.assert_array_equal(carried[0]["half"].astype(jnp.float32), [-2, -2, -2])
    np.testing.assert_array_equal(carried[0]["whole"], [-2, -2])


def _accumulates_many_of_16_bits() -> None:
    """From 256 on a bfloat16 and 1 are the same bfloat16."""
    bps.init()
    passes = 300
    params = {"half": jnp.zeros(3, jnp.bfloat16), "whole": jnp.zeros(3)}
    gradients = jax.tree_util.tree_map(jnp.ones_like, params)
    for given in (params, None):
        optimizer = bps.DistributedOptimizer(optax.trace(0.5), backward_passes_per_step=passes)

        def one(carried: Any, _: Any, given: Any = given, optimizer: Any = optimizer) -> tuple[Any, None]:
            updates, state = optimizer.update(gradients, carried[1], given)
            return (jax.tree_util.tree_map(jnp.add, carried[0], updates), state), None

        start = params, optimizer.init(params)
        found, _ = jax.jit(lambda start, one=one: jax.lax.scan(one, start, None, length=passes))(start)[0]
        for leaf in ("half", "whole"):
            assert found[leaf].dtype == params[leaf].dtype
            np.testing.assert_array_equal(found[leaf].astype(jnp.float32), [passes] * 3)


def _compressed() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    x, y = _data(8 * size)
    whole = _train(optax.sgd(0.1), _start(0), x, y)
    for compression in (bps.Compression.fp16, bps.Compression.bf16):
        optimizer = bps.DistributedOptimizer(optax.sgd(0.1), compression=compression)
        mine = _train(optimizer, _start(0), x[rank::size], y[rank::size])
        _same_on_all_ranks(mine)
        _close(mine, whole, 0.05)
        with pytest.raises(AssertionError):
            _close(mine, whole, 1e-7)


def _two_optimizers_of_one_program() -> None:
    """As those of a generator and a discriminator: the same paths, other tensors."""
    bps.init()
    rank = bps.rank()
    first, second = (bps.DistributedOptimizer(optax.sgd(1.0)) for _ in range(2))
    params = {"w": jnp.zeros(4)}, {"w": jnp.zeros(7)}
    states = first.init(params[0]), second.init(params[1])

    @jax.jit
    def step(x: jax.Array) -> tuple[Any, Any]:
        return (
            first.update({"w": jnp.full(4, x)}, states[0], params[0])[0],
            second.update({"w": jnp.full(7, 10 * x)}, states[1], params[1])[0],
        )

    for turn in range(5):
        one, other = step(float(turn + rank))
        assert np.array_equal(one["w"], np.full(4, -turn - 0.5)) and np.array_equal(
            other["w"], np.full(7, -10 * turn - 5)
        )
    # And one that is made on one rank alone has a name of its own.
    named = bps.DistributedOptimizer(optax.sgd(1.0), op=bps.Sum, name="named")
    updates, _ = named.update(params[0], named.init(params[0]))
    assert np.array_equal(updates["w"], np.zeros(4))


def _ranks_disagree() -> None:
    bps.init()
    params = {"w": jnp.ones(3 + bps.rank())}
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"Gradient\.w.*disagree"):
        jax.block_until_ready(jax.jit(optimizer.update)(params, optimizer.init(params)))


def _wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"bps\.init"):
        bps.DistributedOptimizer(optax.sgd(1.0))
    bps.init()
    for wrong, kind, words in (
        ({"optimizer": "sgd"}, TypeError, "GradientTransformation"),
        ({"backward_passes_per_step": 0}, ValueError, "backward_passes_per_step is 0"),
        ({"backward_passes_per_step": 1.5}, TypeError, "backward_passes_per_step"),
        ({"op": 99}, ValueError, "op is 99"),
        ({"compression": 3}, TypeError, "compression"),
    ):
        with pytest.raises(kind, match=words):
            bps.DistributedOptimizer(**{"optimizer": optax.sgd(1.0), **wrong})


def _gradient_through_an_update() -> None:
    """Of a rate that the gradients are multiplied by, behind one update of two leaves."""
    bps.init()
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}

    def updated(rate: jax.Array) -> jax.Array:
        optimizer = bps.DistributedOptimizer(optax.sgd(1.0), name="through")
        scaled = jax.tree_util.tree_map(lambda leaf: leaf * rate * (bps.rank() + 1), params)
        updates, _ = optimizer.update(scaled, optimizer.init(params), params)
        return sum(leaf.sum() for leaf in jax.tree_util.tree_leaves(updates))

    # The average of both ranks' gradients, which is that of -1 for each of 5 numbers, times what the rank is from.
    for wrap in (lambda f: f, jax.jit):
        np.testing.assert_allclose(wrap(jax.grad(updated))(0.1), -5 * (bps.rank() + 1))


BODIES = [
    _as_one_process_with_the_double_batch,
    _accumulates,
    _accumulates_other_dtypes,
    _accumulates_many_of_16_bits,
    _compressed,
    _two_optimizers_of_one_program,
    _ranks_disagree,
    _gradient_through_an_update,
    _wrong_arguments,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)


def _digests() -> list[str]:
    """Of the parameters behind each of a few compiled steps, with gradients as they are, compressed and accumulated."""
    bps.init()
    generator = np.random.default_rng(bps.rank())
    x, y = (jnp.asarray(generator.standard_normal((9 + bps.rank(), width)), jnp.float32) for width in (40, 999))
    digests = []
    for options in (
        {},
        {"compression": bps.Compression.bf16},
        {"compression": bps.Compression.fp16},
        {"backward_passes_per_step": 2},
    ):
        optimizer = bps.DistributedOptimizer(optax.sgd(0.01, momentum=0.9), **options)
        params = {"w": jax.random.normal(jax.random.key(7), (40, 999)), "b": jnp.zeros(999)}
        state = optimizer.init(params)

        @jax.jit
        def step(params: Params, state: Any, optimizer: Any = optimizer) -> tuple[Params, Any]:
            gradients = jax.grad(lambda now: jnp.sum((jnp.tanh(x @ now["w"] + now["b"]) - y) ** 2))(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(4):
            params, state = step(params, state)
            leaves = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(params))
            digests.append(hashlib.sha256(leaves).hexdigest())
    return digests


def test_the_same_bits_on_all_ranks_and_in_all_runs(run_workers: RunWorkers) -> None:
    """Of three workers, whose sums are other ones in another order."""
    runs = [run_workers(_digests, workers=3).results for _ in range(2)]
    assert runs == [[runs[0][0]] * 3] * 2
    # Each step changes the parameters, but for the accumulating ones, of which each second does.
    assert len(set(runs[0][0])) == 3 * 4 + 3
