"""Which operation is how urgent, as the library has it from TensorFlow (its timeline says so): the scheduler sends the
largest priority first, and the next forward pass needs the first variables first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
from timelines import priorities
from urgency import LAYERS, QUEUED, STEPS, VALUES, WIDTH, check_overtaking

RunWorkers = Callable[..., Any]


def _reduce() -> None:
    bps.init()
    weights = [tf.Variable(tf.ones([8]), name=f"layer{layer}") for layer in range(3)]

    def step(name: str) -> Any:
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(weight * weight) for weight in weights])
        return [
            *tape.gradient(loss, weights),
            bps.push_pull(weights[0], name=f"{name} push_pull", priority=5),
            bps.allgather(weights[0], name=f"{name} allgather", priority=-7),
        ]

    step("eager")
    tf.function(step)("graph")
    bps.shutdown()


def test_priorities(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_reduce, BYTEPS_TIMELINE=str(path))
    found = priorities(path)
    for place in ("eager", "graph"):
        assert found.pop(f"{place} push_pull") == {5}
        assert found.pop(f"{place} allgather") == {-7}
    gradients = {name: found[name] for name in found if name.startswith("gradient.")}
    assert gradients == {f"gradient.{layer}.layer{layer}": {-layer} for layer in range(3)}


def _train_deep_network() -> None:
    bps.init()
    weights = [tf.Variable(tf.zeros(VALUES), name=f"layer{layer}") for layer in range(LAYERS)]

    @tf.function
    def step() -> None:
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            hidden = tf.ones([2, WIDTH])
            for weight in weights:
                hidden = tf.tanh(hidden @ tf.eye(WIDTH) + tf.reduce_mean(weight))
            loss = tf.reduce_sum(hidden * hidden)
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(1e-6 * gradient)

    for _ in range(STEPS):
        step()
    bps.shutdown()


def test_first_layers_overtake_last_ones(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_train_deep_network, BYTEPS_TIMELINE=str(path), **QUEUED)
    check_overtaking(path, [f"gradient.{layer}.layer{layer}" for layer in range(LAYERS)])
