"""Asynchronous training: what ranks get that take different numbers of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

jax = framework("jax")
optax = framework("optax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np
from asynchronous_runs import ASYNCHRONOUS, Step, bounded, run_bounded, run_until_the_peer_dies

RunWorkers = Callable[..., Any]


def _sums(passes: int) -> list[float]:
    """Rank 0 takes 10 steps of 1, rank 1 takes 4 of 2: one that waited for the other would never end."""
    bps.init()
    rank = bps.rank()
    params = {"w": jnp.full([300, 40], 5.0 * rank), "b": jnp.full([3], 5.0 * rank)}  # the servers begin with rank 0's
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=passes)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, size: Any) -> tuple[Any, Any]:
        gradients = jax.tree_util.tree_map(lambda leaf: jnp.full_like(leaf, -size / passes), params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    seen = 0.0
    for _ in range(4 if rank else 10):
        for _ in range(passes):
            params, state = step(params, state, rank + 1.0)
        low, high = float(params["w"].min()), float(params["w"].max())
        assert seen + rank + 1 <= low <= high <= 18
        seen = low
    bps.barrier()
    for _ in range(passes):
        params, state = step(params, state, 0.0)
    assert bps.push_pull(jnp.ones([2]), op=bps.Sum, name="of all").tolist() == [2, 2]
    return np.unique(np.concatenate([np.ravel(leaf) for leaf in params.values()])).tolist()


@pytest.mark.parametrize("passes", [1, 2])
def test_everybody_gets_all_steps(run_workers: RunWorkers, passes: int) -> None:
    assert run_workers(_sums, passes, servers=2, BYTEPS_ENABLE_ASYNC="1").results == [[18.0]] * 2


def _two_sessions() -> float:
    """The servers of the second session have nothing until init() gives it to them; within one they have it once."""
    bps.init()
    params = {"w": jnp.full([300], 5.0)}
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0))

    def step(params: Any, state: Any, size: float) -> Any:
        updates, _ = optimizer.update({"w": jnp.full([300], -size)}, state, params)
        return optax.apply_updates(params, updates)

    state: Any = None
    for session in range(2):
        if session != 0:
            bps.shutdown()
            bps.init()
            with pytest.raises(ValueError, match="init"):
                step(params, state, 1.0)
        state = optimizer.init(params)
        params = jax.block_until_ready(step(params, state, 1.0))  # at the servers, before the others ask for it
        bps.barrier()
        state = optimizer.init(params)
        params = step(params, state, 0.0)
    return float(params["w"].max())


def test_a_second_session_goes_on(run_workers: RunWorkers) -> None:
    assert run_workers(_two_sessions, servers=1, BYTEPS_ENABLE_ASYNC="1").results == [9.0] * 2


def _step() -> Step:
    bps.init()
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0))
    held = {"params": jnp.zeros([300])}
    held["state"] = optimizer.init(held["params"])

    @jax.jit
    def take(params: Any, state: Any, size: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jnp.full_like(params, -size), state, params)
        return optax.apply_updates(params, updates), state

    def step(size: float) -> float:
        held["params"], held["state"] = take(held["params"], held["state"], float(size))
        return float(held["params"].min())

    return step


def _bounded() -> None:
    run_bounded(_step())


def _peer_dies() -> None:
    run_until_the_peer_dies(_step(), jax.errors.JaxRuntimeError)


@pytest.mark.parametrize("bound", [0, 2])
def test_the_bound_holds(run_workers: RunWorkers, bound: int) -> None:
    run_workers(_bounded, **bounded(bound))


def test_a_death_is_an_error_of_jax(run_workers: RunWorkers) -> None:
    job = run_workers(_peer_dies, check=False, **ASYNCHRONOUS)
    assert job.returncode != 0 and "heard: " in job.output, job.output


def _refused() -> None:
    bps.init()
    for options, text in (
        ({"op": bps.Max}, "op=Max"),
        ({"compression": bps.Compression.fp16}, "compression"),
        ({"axis_name": "devices"}, "axis_name"),
        ({"process_set": bps.add_process_set([bps.rank()])}, "process_set"),
    ):
        with pytest.raises(ValueError, match=f"{text}.* does not go with asynchronous training"):
            bps.DistributedOptimizer(optax.sgd(1.0), **options)
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0))
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(optimizer.init)(jnp.ones(2))
    with pytest.raises(ValueError, match="needs update"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))


def test_what_does_not_go_with_it(run_workers: RunWorkers) -> None:
    run_workers(_refused, BYTEPS_ENABLE_ASYNC="1")
