"""Asynchronous training with fit(), on the backends that have it: ranks take different numbers of steps."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

framework("keras")

import byteps.keras as bps
import numpy as np

RunWorkers = Callable[..., Any]
keras: Any = importlib.import_module(os.environ.get("TESTED_KERAS", "keras"))


def _of_package(name: str) -> dict[str, str]:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed here: tools/setup --frameworks")
    old = name == "tf_keras"
    return {
        "BYTEPS_ENABLE_ASYNC": "1",
        "KERAS_BACKEND": "tensorflow" if old else name,
        "TESTED_KERAS": name if old else "keras",
    }


def _sums() -> tuple[float, float]:
    """Rank 0 takes 10 steps of 1, rank 1 takes 4 of 2: one that waited for the other would never end. The second layer
    is rank 1's alone."""
    bps.init()
    rank = bps.rank()
    local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    start = keras.initializers.Constant(5.0 * rank)
    shared = keras.layers.Dense(1, use_bias=False, kernel_initializer=start)
    x = keras.layers.Input((1,))
    both = keras.Model(x, keras.layers.add([shared(x), local(x)]))
    optimizer = bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=local)
    # The loss is the output: each gradient is the input.
    both.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)

    def step(size: float, number: int) -> None:
        both.fit(np.full([number, 1], -size, "float32"), np.zeros([number, 1]), batch_size=1, verbose=0)

    step(rank + 1.0, 4 if rank else 10)
    bps.barrier()
    step(0.0, 1)
    return float(np.ravel(shared.get_weights()[0])[0]), float(np.ravel(local.get_weights()[0])[0])


@pytest.mark.parametrize("package", ["tensorflow", "torch", "tf_keras"])
def test_everybody_gets_all_steps(run_workers: RunWorkers, package: str) -> None:
    job = run_workers(_sums, servers=2, **_of_package(package))
    assert job.results == [(18.0, 11.0), (18.0, 9.0)]


def _passes() -> float:
    """Two passes make a step of their sum, as in synchronous training."""
    bps.init()
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    x = keras.layers.Input((1,))
    model = keras.Model(x, layer(x))
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
    for size in (1.0, 0.0):
        model.fit(np.full([4, 1], -size, "float32"), np.zeros([4, 1]), batch_size=1, verbose=0)
        bps.barrier()
    return float(np.ravel(layer.get_weights()[0])[0])


@pytest.mark.parametrize("package", ["tensorflow", "torch"])
def test_passes_are_summed(run_workers: RunWorkers, package: str) -> None:
    assert run_workers(_passes, servers=1, **_of_package(package)).results == [8.0] * 2


def _refused() -> None:
    bps.init()
    with pytest.raises(bps.UnimplementedError, match="Keras's backend JAX has no asynchronous training"):
        bps.DistributedOptimizer(keras.optimizers.SGD(1.0))


def test_jax_says_that_it_has_none(run_workers: RunWorkers) -> None:
    run_workers(_refused, **_of_package("jax"))
