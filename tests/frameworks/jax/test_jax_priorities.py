"""Which operation is how urgent, as the library has it from JAX (its timeline says so): the scheduler sends the largest
priority first, and the next forward pass needs the first parameters first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework

jax = framework("jax")
optax = framework("optax")

import byteps.jax as bps
import jax.numpy as jnp
from timelines import priorities
from urgency import LAYERS, QUEUED, STEPS, VALUES, WIDTH, check_overtaking

RunWorkers = Callable[..., Any]


def _reduce() -> None:
    bps.init()
    params = {f"layer{layer}": jnp.eye(8) for layer in range(3)}
    optimizer = bps.DistributedOptimizer(optax.sgd(0.1))
    state = optimizer.init(params)

    def loss_of(params: Any) -> Any:
        return sum((weights * weights).sum() for weights in params.values())

    def step(params: Any, state: Any, place: str) -> Any:
        updates, state = optimizer.update(jax.grad(loss_of)(params), state, params)
        ones = jnp.ones(8)
        others = [
            bps.push_pull(ones, name=f"{place} push_pull", priority=5),
            bps.broadcast(ones, 0, name=f"{place} broadcast", priority=3),
            bps.allgather(ones, name=f"{place} allgather", priority=-7),
        ]
        return optax.apply_updates(params, updates), state, others

    params, state, others = step(params, state, "outside")
    jax.block_until_ready((params, others))
    jax.block_until_ready(jax.jit(step, static_argnums=2)(params, state, "program"))
    bps.shutdown()


def test_priorities(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_reduce, BYTEPS_TIMELINE=str(path))
    found = priorities(path)
    for place in ("outside", "program"):
        assert found.pop(f"{place} push_pull") == {5}
        assert found.pop(f"{place} broadcast") == {3}
        assert found.pop(f"{place} allgather") == {-7}
    gradients = {name: found[name] for name in found if name.startswith("Gradient.")}
    assert gradients == {f"Gradient.layer{layer}": {-layer} for layer in range(3)}


def _train_deep_network(donated: bool) -> None:
    bps.init()
    params = {f"layer{layer:02}": jnp.zeros(VALUES) for layer in range(LAYERS)}
    optimizer = bps.DistributedOptimizer(optax.sgd(1e-6))
    state = optimizer.init(params)

    def loss_of(params: Any) -> Any:
        hidden = jnp.ones([2, WIDTH])
        for _, weights in sorted(params.items()):
            hidden = jnp.tanh(hidden @ jnp.eye(WIDTH) + weights.mean())
        return (hidden * hidden).sum()

    def step(params: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss_of)(params), state, params)
        return optax.apply_updates(params, updates), state

    run = jax.jit(step, donate_argnums=(0, 1) if donated else ())
    for _ in range(STEPS):
        params, state = run(params, state)
    jax.block_until_ready(params)
    bps.shutdown()


@pytest.mark.parametrize("donated", [False, True])
def test_first_layers_overtake_last_ones(run_workers: RunWorkers, donated: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_train_deep_network, donated, BYTEPS_TIMELINE=str(path), **QUEUED)
    check_overtaking(path, [f"Gradient.layer{layer:02}" for layer in range(LAYERS)])
