"""Which gradient of fit() is how urgent, as the library has it (its timeline says so): the scheduler sends the largest
priority first, and the next forward pass needs the first variables first."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework

keras = framework("keras")

import byteps.keras as bps
import numpy as np
from byteps.keras.optimizer import gradient_names
from timelines import priorities
from urgency import LAYERS, QUEUED, STEPS, VALUES, WIDTH, check_overtaking

RunWorkers = Callable[..., Any]


def _fit() -> None:
    bps.init()
    layers = [keras.layers.Dense(4) for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(optimizer=bps.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse", jit_compile=False)
    model.fit(np.ones([4, 4]), np.zeros([4, 4]), batch_size=2, verbose=0)
    bps.shutdown()


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_priorities(run_workers: RunWorkers, backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed here: tools/setup --frameworks")
    path = tmp_path / "t.json"
    run_workers(_fit, BYTEPS_TIMELINE=str(path), KERAS_BACKEND=backend)
    found = {name: urgent for name, urgent in priorities(path).items() if "gradient" in name}
    assert len(found) == 6, found
    for name, urgent in found.items():
        place = int(name.split("gradient.")[1].split(".")[0])
        assert urgent == {-place}, found


def _train_deep_network() -> list[str]:
    bps.init()

    class Layer(keras.layers.Layer):
        def build(self, _: Any) -> None:
            self.added = self.add_weight(shape=(VALUES,), initializer="zeros")

        def call(self, hidden: Any) -> Any:
            return keras.ops.tanh(hidden @ keras.ops.eye(WIDTH) + keras.ops.mean(self.added))

    model = keras.Sequential([keras.layers.Input((WIDTH,)), *(Layer() for _ in range(LAYERS))])
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1e-6))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=keras.backend.backend() == "jax")
    x = np.ones([2 * STEPS, WIDTH], np.float32)
    model.fit(x, 0 * x, batch_size=2, verbose=0)
    bps.shutdown()
    return gradient_names(model.trainable_variables, "gradient.")


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_first_layers_overtake_last_ones(run_workers: RunWorkers, backend: str, tmp_path: Path) -> None:
    """On PyTorch Keras hands all gradients to the optimizer at once, the first layer's first."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed here: tools/setup --frameworks")
    if keras.__version__.startswith("2."):
        pytest.skip("the names are those of Keras 3")
    path = tmp_path / "t.json"
    job = run_workers(_train_deep_network, BYTEPS_TIMELINE=str(path), KERAS_BACKEND=backend, **QUEUED)
    check_overtaking(path, job.results[0])
