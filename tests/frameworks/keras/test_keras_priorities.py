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
from timelines import priorities

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
