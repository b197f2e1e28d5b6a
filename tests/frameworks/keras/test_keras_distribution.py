"""keras.distribution beside BytePS, which is the distribution of its own over workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

framework("keras")
framework("jax")

import byteps.keras as bps
import keras
import numpy as np
from byteps.keras.flavor import is_keras_3

RunWorkers = Callable[..., Any]

if not is_keras_3(keras):
    pytest.skip("of Keras 3 alone", allow_module_level=True)


def _fit() -> str:
    bps.init()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.ones([8, 4], np.float32)
    try:
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
    except bps.UnimplementedError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_data_parallel(run_workers: RunWorkers, devices: int, asynchronous: bool) -> None:
    """Of one device it changes nothing; of several it is refused in words of BytePS."""
    messages = run_workers(
        _fit,
        KERAS_BACKEND="jax",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
        BYTEPS_ENABLE_ASYNC="1" if asynchronous else None,
    ).results
    for message in messages:
        if devices == 1:
            assert message == "trained"
        else:
            assert "keras.distribution.DataParallel over 2 devices" in message and "bpslaunch" in message, message
