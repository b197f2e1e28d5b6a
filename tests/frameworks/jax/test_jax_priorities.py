"""Which operation is how urgent, as the library has it from JAX (its timeline says so): the scheduler sends the largest
priority first, and the next forward pass needs the first parameters first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from installed import framework

jax = framework("jax")
optax = framework("optax")

import byteps.jax as bps
import jax.numpy as jnp
from timelines import priorities

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
