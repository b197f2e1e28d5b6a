"""Communication beside the backward pass, by the order of events. Rank 0 trains; rank 1 answers by hand, and lets the
backward pass come to the first layer only when the gradients of all others have been reduced. A program that reduced
gradients when all of them are there would never come to its end, and a deadline fails it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from installed import framework

jax = framework("jax")
optax = framework("optax")

import byteps.jax as bps
import jax.numpy as jnp
import numpy as np

RunWorkers = Callable[..., Any]

LAYERS = 4
WIDTH = 64
STEPS = 3


@jax.custom_vjp
def _gate(hidden: Any) -> Any:
    return hidden


def _backward(_: None, upstream: Any) -> tuple[Any]:
    return (bps.push_pull(upstream, name="gate", op=bps.Sum),)


_gate.defvjp(lambda hidden: (hidden, None), _backward)


def _train() -> list[np.ndarray]:
    optimizer = bps.DistributedOptimizer(optax.sgd(0.001), op=bps.Sum)
    params = {f"layer{layer}": jnp.eye(WIDTH) for layer in range(LAYERS)}
    state = optimizer.init(params)

    def loss_of(params: Any) -> Any:
        hidden = _gate(jnp.ones([2, WIDTH]) @ params["layer0"])
        for layer in range(1, LAYERS):
            hidden = jnp.tanh(hidden @ params[f"layer{layer}"])
        return (hidden * hidden).sum()

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss_of)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(STEPS):
        params, state = step(params, state)
    return [np.asarray(params[f"layer{layer}"]) for layer in range(LAYERS)]


def _answer() -> None:
    nothing = jnp.zeros([WIDTH, WIDTH])
    for _ in range(STEPS):
        for layer in reversed(range(1, LAYERS)):
            bps.push_pull(nothing, name=f"Gradient.layer{layer}", op=bps.Sum).block_until_ready()
        bps.push_pull(jnp.zeros([2, WIDTH]), name="gate", op=bps.Sum).block_until_ready()
        bps.push_pull(nothing, name="Gradient.layer0", op=bps.Sum).block_until_ready()


def _train_or_answer() -> bool:
    bps.init()
    if bps.rank() == 1:
        _answer()
        return True
    trained = _train()
    return all(np.isfinite(weights).all() and not np.array_equal(weights, np.eye(WIDTH)) for weights in trained)


def test_gradients_are_reduced_during_the_backward_pass(run_workers: RunWorkers) -> None:
    assert run_workers(_train_or_answer, BYTEPS_OP_TIMEOUT="120").results == [True, True]


def _forward_or_backward() -> None:
    """Rank 0 computes gradients from the last layer to the first, rank 1 answers them from the first to the last: no
    gradient comes home before all are on their way."""
    bps.init()
    optimizer = bps.DistributedOptimizer(optax.sgd(0.001), op=bps.Sum)
    params = {f"layer{layer:02}": jnp.eye(WIDTH) for layer in range(12)}

    def loss_of(params: Any) -> Any:
        hidden = jnp.ones([2, WIDTH])
        for _, weights in sorted(params.items()):
            hidden = jnp.tanh(hidden @ weights)
        return (hidden * hidden).sum()

    def step(params: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss_of)(params), state, params)
        return optax.apply_updates(params, updates), state

    run = jax.jit(step, donate_argnums=(0, 1))
    state = optimizer.init(params)
    for _ in range(STEPS):
        if bps.rank() == 0:
            params, state = run(params, state)
        else:
            for name in sorted(params):
                bps.push_pull(jnp.zeros([WIDTH, WIDTH]), name=f"Gradient.{name}", op=bps.Sum).block_until_ready()
    jax.block_until_ready(params)


def test_all_gradients_travel_at_once(run_workers: RunWorkers) -> None:
    """Also where parameters are donated, so that XLA could give the gradients one memory after the other."""
    run_workers(_forward_or_backward, BYTEPS_OP_TIMEOUT="60")
