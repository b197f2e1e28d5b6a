"""Communication beside the backward pass, as the timeline (docs/timeline.md) shows it. Before the gradient of the first
layer is computed, the test waits for those of the others to come home: a graph that reduced gradients only when all of
them are there would never come to its end, and a deadline fails it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
from timelines import path_of, read_whole, wait_until_home

RunWorkers = Callable[..., Any]

LAYERS = 4
WIDTH = 64
STEPS = 3


def _names() -> list[str]:
    return [f"gradient.{layer}.layer{layer}" for layer in range(LAYERS)]


def _backward_that_waits(path: str) -> None:
    # One thread waits in the backward pass; others take what can be done meanwhile.
    tf.config.threading.set_inter_op_parallelism_threads(4)
    bps.init()
    weights = [tf.Variable(tf.eye(WIDTH), name=f"layer{layer}") for layer in range(LAYERS)]
    optimizer_step = 0.001

    def others_are_home(step: Any) -> None:
        for name in _names()[1:]:
            wait_until_home(path_of(path, bps.rank()), name, int(step))
        bps.timeline_mark("first layer's backward")

    @tf.custom_gradient
    def gate(hidden: Any, step: Any) -> Any:
        def backward(upstream: Any) -> tuple[Any, None]:
            with tf.control_dependencies([upstream]):
                waited = tf.py_function(others_are_home, [step], [])
            with tf.control_dependencies([waited]):
                return tf.identity(upstream), None

        return tf.identity(hidden), backward

    @tf.function
    def train(step: Any) -> None:
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            hidden = gate(tf.ones([2, WIDTH]) @ weights[0], step)
            for weight in weights[1:]:
                hidden = hidden @ weight
            loss = tf.reduce_sum(hidden * hidden)
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(optimizer_step * gradient)

    for step in range(STEPS):
        with bps.timeline_span("step"):
            train(tf.constant(step))
    bps.shutdown()


def test_gradients_come_home_during_the_backward_pass(run_workers: RunWorkers, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_workers(_backward_that_waits, str(path), BYTEPS_TIMELINE=str(path))
    for rank in (0, 1):
        timeline = read_whole(path_of(path, rank))
        firsts = timeline.moments["first layer's backward"]
        assert len(firsts) == STEPS
        for step, first in enumerate(firsts):
            own, *others = (timeline.operation("push_pull", name, step) for name in _names())
            for operation in others:
                assert timeline.spans["step"][step].begin <= operation.begin <= operation.end <= first
            assert first <= own.begin <= own.end <= timeline.spans["step"][step].end
