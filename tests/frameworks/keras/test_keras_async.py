"""Asynchronous training with fit(), on each backend: ranks take different numbers of steps."""

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
from asynchronous_runs import Step, bounded, run_bounded, run_until_the_peer_dies

RunWorkers = Callable[..., Any]
_ON_JAX = os.environ.get("KERAS_BACKEND") == "jax"  # where programs are compiled

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
    both.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=_ON_JAX)

    def step(size: float, number: int) -> None:
        both.fit(np.full([number, 1], -size, "float32"), np.zeros([number, 1]), batch_size=1, verbose=0)

    step(rank + 1.0, 4 if rank else 10)
    bps.barrier()
    step(0.0, 1)
    return float(np.ravel(shared.get_weights()[0])[0]), float(np.ravel(local.get_weights()[0])[0])


@pytest.mark.parametrize("package", ["tensorflow", "torch", "jax", "tf_keras"])
def test_everybody_gets_all_steps(run_workers: RunWorkers, package: str) -> None:
    job = run_workers(_sums, servers=2, **_of_package(package))
    assert job.results == [(18.0, 11.0), (18.0, 9.0)]


def _passes(scaled: bool) -> float:
    """Two passes make a step of their sum, as in synchronous training; also inside of loss scaling."""
    bps.init()
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    x = keras.layers.Input((1,))
    model = keras.Model(x, layer(x))
    sgd = keras.optimizers.SGD(1.0)
    if scaled:
        sgd = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=4.0)
    optimizer = bps.DistributedOptimizer(sgd, backward_passes_per_step=2)
    model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=_ON_JAX)
    for size in (1.0, 0.0):
        model.fit(np.full([4, 1], -size, "float32"), np.zeros([4, 1]), batch_size=1, verbose=0)
        bps.barrier()
    return float(np.ravel(layer.get_weights()[0])[0])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("package", ["tensorflow", "torch", "jax"])
def test_passes_are_summed(run_workers: RunWorkers, package: str, scaled: bool) -> None:
    assert run_workers(_passes, scaled, servers=1, **_of_package(package)).results == [8.0] * 2


def _overflow() -> tuple[float, float]:
    """Loss scaling: a step that overflows adds nothing, and the scale is this worker's own."""
    bps.init()
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="float32")
    x = keras.layers.Input((1,))
    model = keras.Model(x, layer(x))
    inner = keras.optimizers.SGD(1.0)
    scaling = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    model.compile(
        optimizer=bps.DistributedOptimizer(scaling), loss=lambda y, prediction: prediction, jit_compile=_ON_JAX
    )
    sizes = ([1.0, np.inf, 1.0], [2.0, 2.0, 2.0])[bps.rank()]
    for size in sizes:
        model.fit(np.full([1, 1], -size, "float32"), np.zeros([1, 1]), batch_size=1, verbose=0)
    bps.barrier()
    model.fit(np.zeros([1, 1], "float32"), np.zeros([1, 1]), batch_size=1, verbose=0)
    return float(np.ravel(layer.get_weights()[0])[0]), float(np.asarray(scaling.dynamic_scale))


@pytest.mark.parametrize("package", ["tensorflow", "torch", "jax"])
def test_a_step_that_overflows_adds_nothing(run_workers: RunWorkers, package: str) -> None:
    assert run_workers(_overflow, servers=1, **_of_package(package)).results == [(8.0, 2.0), (8.0, 4.0)]


def _two_optimizers_and_sessions() -> list[float]:
    """Each optimizer has parameters of its own on the servers, and each session's servers get them."""
    bps.init()

    def trained(start: float) -> Any:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(start))
        x = keras.layers.Input((1,))
        model = keras.Model(x, layer(x))
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0))
        model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=_JIT)
        return model

    def fit(model: Any) -> float:
        for size in (1.0, 0.0):
            model.fit(np.full([1, 1], -size, "float32"), np.zeros([1, 1]), batch_size=1, verbose=0)
            bps.barrier()
        return float(np.ravel(model.get_weights()[0])[0])

    first, second = trained(5.0 * bps.rank()), trained(100.0 + bps.rank())
    found = [fit(first), fit(second)]
    bps.shutdown()
    bps.init()
    return [*found, fit(second), fit(first), fit(trained(0.0))]


_JIT = os.environ.get("TESTED_JIT") == "1"


@pytest.mark.parametrize("jit", [True, False])
def test_optimizers_and_sessions_on_jax(run_workers: RunWorkers, jit: bool) -> None:
    environment = {**_of_package("jax"), "TESTED_JIT": str(int(jit))}
    assert (
        run_workers(_two_optimizers_and_sessions, servers=2, **environment).results
        == [[2.0, 102.0, 104.0, 4.0, 2.0]] * 2
    )


def _step() -> Step:
    bps.init()
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    x = keras.layers.Input((1,))
    model = keras.Model(x, layer(x))
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=_ON_JAX)

    def step(size: float) -> float:
        model.fit(np.full([1, 1], -size, "float32"), np.zeros([1, 1]), batch_size=1, verbose=0)
        return float(np.ravel(layer.get_weights()[0])[0])

    return step


def _bounded() -> None:
    run_bounded(_step())


def _peer_dies() -> None:
    step = _step()
    error: type[Exception] = bps.UnavailableError
    if keras.backend.backend() == "jax":
        import jax

        error = jax.errors.JaxRuntimeError
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        error = tf.errors.UnavailableError
    run_until_the_peer_dies(step, error)


PACKAGES = ["tensorflow", "torch", "jax", "tf_keras"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_bound_holds(run_workers: RunWorkers, package: str) -> None:
    run_workers(_bounded, **{**_of_package(package), **bounded(1)})


@pytest.mark.parametrize("package", PACKAGES)
def test_a_death_is_an_error_of_the_backend(run_workers: RunWorkers, package: str) -> None:
    job = run_workers(_peer_dies, check=False, **_of_package(package))
    assert job.returncode != 0 and "heard: " in job.output, job.output
