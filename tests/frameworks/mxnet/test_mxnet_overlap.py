"""Communication beside the backward pass, by the order of events. Rank 0 trains; rank 1 answers by hand, and lets the
backward pass come to the first layer only when the gradients of all others have been reduced. A trainer that sent
gradients when all of them are there would never come to the end of its step, and a deadline fails it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from installed import framework

mx = framework("mxnet")

import byteps.mxnet as bps
from mxnet.gluon import nn

RunWorkers = Callable[..., Any]

LAYERS = 4
WIDTH = 64
STEPS = 3


class _Gate(mx.autograd.Function):
    def forward(self, hidden: mx.nd.NDArray) -> mx.nd.NDArray:
        return hidden.copy()

    def backward(self, upstream: mx.nd.NDArray) -> mx.nd.NDArray:
        return bps.push_pull(upstream, name="gate", op=bps.Sum)


def _train(layers: list[nn.Dense], trainer: mx.gluon.Trainer) -> None:
    for _ in range(STEPS):
        with mx.autograd.record():
            first, *others = layers
            hidden = _Gate()(first(mx.nd.ones((2, WIDTH))))
            for layer in others:
                hidden = layer(hidden)
            loss = (hidden * hidden).sum()
        loss.backward()
        trainer.step(2)
    mx.nd.waitall()


def _answer() -> None:
    def add_nothing(name: str, shape: tuple[int, ...]) -> None:
        bps.push_pull(mx.nd.zeros(shape), name=name, op=bps.Sum).wait_to_read()

    for _ in range(STEPS):
        for layer in reversed(range(1, LAYERS)):
            add_nothing(f"gradient.{layer}.layer_weight", (WIDTH, WIDTH))
        add_nothing("gate", (2, WIDTH))
        add_nothing("gradient.0.layer_weight", (WIDTH, WIDTH))


def _train_or_answer() -> list[bool]:
    """Whether the layers have changed."""
    bps.init()
    layers = [
        nn.Dense(WIDTH, activation="tanh", use_bias=False, in_units=WIDTH, prefix=f"layer{layer}_")
        for layer in range(LAYERS)
    ]
    for layer in layers:
        layer.initialize(mx.init.Constant(0.01))
    params = {layer.weight.name: layer.weight for layer in layers}
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 0.001})
    if bps.rank() == 0:
        _train(layers, trainer)
    else:
        _answer()
    return [bool((layer.weight.data() != 0.01).sum().asscalar() > 0) for layer in layers]


def test_gradients_are_reduced_during_the_backward_pass(run_workers: RunWorkers) -> None:
    job = run_workers(_train_or_answer, BYTEPS_OP_TIMEOUT="120")
    assert job.results == [[True] * LAYERS, [False] * LAYERS]
