"""Communication beside the backward pass of fit(), by the order of events. Rank 0 trains; rank 1 answers by hand, and
lets the backward pass come to the first layer only when the gradients of all others have been reduced. A step that
reduced gradients when all of them are there would never come to its end, and a deadline fails it.

On PyTorch Keras itself computes all gradients before it hands them to the optimizer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

keras = framework("keras")

import byteps.keras as bps
import numpy as np
from byteps.keras.optimizer import gradient_names
from byteps.outlines import agree

RunWorkers = Callable[..., Any]

LAYERS = 4
WIDTH = 64
STEPS = 3


def _gate_of_tensorflow() -> Callable[[Any], Any]:
    import byteps.tensorflow as of_tensorflow
    import tensorflow as tf

    @tf.custom_gradient
    def gate(hidden: Any) -> Any:
        return tf.identity(hidden), lambda upstream: of_tensorflow.push_pull(upstream, name="gate", op=bps.Sum)

    return gate


def _gate_of_jax() -> Callable[[Any], Any]:
    import byteps.jax as of_jax
    import jax

    @jax.custom_vjp
    def gate(hidden: Any) -> Any:
        return hidden

    gate.defvjp(
        lambda hidden: (hidden, None), lambda _, upstream: (of_jax.push_pull(upstream, name="gate", op=bps.Sum),)
    )
    return gate


def _model(gate: Callable[[Any], Any]) -> Any:
    class Gate(keras.layers.Layer):
        def call(self, hidden: Any) -> Any:
            return gate(hidden)

    first, *others = [
        keras.layers.Dense(WIDTH, use_bias=False, activation="tanh", kernel_initializer="identity")
        for _ in range(LAYERS)
    ]
    return keras.Sequential([keras.layers.Input((WIDTH,)), first, Gate(), *others])


def _train() -> bool:
    model = _model({"tensorflow": _gate_of_tensorflow, "jax": _gate_of_jax}[keras.backend.backend()]())
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.001), op=bps.Sum)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=keras.backend.backend() == "jax")
    model.fit(np.ones([2 * STEPS, WIDTH]), np.zeros([2 * STEPS, WIDTH]), batch_size=2, verbose=0)
    return all(not np.array_equal(weights, np.eye(WIDTH)) for weights in model.get_weights())


def _answer() -> bool:
    nothing = np.zeros([WIDTH, WIDTH], np.float32)
    # Of the model that rank 0 has.
    variables = _model(lambda hidden: hidden).trainable_variables
    first, *others = gradient_names(variables, "gradient.")
    agree(gradient_names(variables, ""), "DistributedOptimizer.outline", "the gradients of their models")
    for _ in range(STEPS):
        for name in reversed(others):
            bps.push_pull(nothing, name=name, op=bps.Sum)
        bps.push_pull(np.zeros([2, WIDTH], np.float32), name="gate", op=bps.Sum)
        bps.push_pull(nothing, name=first, op=bps.Sum)
    return True


def _train_or_answer() -> bool:
    bps.init()
    return _train() if bps.rank() == 0 else _answer()


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_gradients_are_reduced_during_the_backward_pass(run_workers: RunWorkers, backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed here: tools/setup --frameworks")
    if keras.__version__.startswith("2."):
        pytest.skip("the names are those of Keras 3")
    job = run_workers(_train_or_answer, KERAS_BACKEND=backend, BYTEPS_OP_TIMEOUT="120")
    assert job.results == [True, True]
