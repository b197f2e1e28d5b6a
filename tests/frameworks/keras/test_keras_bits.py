"""The bits of fit() with byteps.keras: the same on all ranks, and in all runs, on each backend."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

framework("keras")

RunWorkers = Callable[..., Any]


def _digests() -> list[str]:
    """Of the weights behind each epoch."""
    import byteps.keras as bps
    import numpy as np
    from byteps.keras.flavor import backend_of

    keras = importlib.import_module(os.environ["TESTED_KERAS"])
    bps.init()
    if backend_of(keras) == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(11 + bps.rank())
    layers = [keras.layers.Input((20,)), keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(bps.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    digests = []

    class Digest(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            state = b"".join(np.ascontiguousarray(weight).tobytes() for weight in self.model.get_weights())
            digests.append(hashlib.sha256(state).hexdigest())

    generator = np.random.default_rng(bps.rank())
    x, y = (generator.normal(size=(64, width)).astype("float32") for width in (20, 10))
    callbacks = [bps.callbacks.BroadcastGlobalVariablesCallback(0), Digest()]
    model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    return digests


@pytest.mark.parametrize("package", ["tensorflow", "torch", "jax", "tf_keras"])
def test_the_same_bits_on_all_ranks_and_in_all_runs(run_workers: RunWorkers, package: str) -> None:
    """With Keras 3 on this backend, or the package tf_keras."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: tools/setup --frameworks")
    of_keras_2 = package == "tf_keras"
    variables = {
        "TESTED_KERAS": package if of_keras_2 else "keras",
        "KERAS_BACKEND": "tensorflow" if of_keras_2 else package,
    }
    runs = [run_workers(_digests, **variables).results for _ in range(2)]
    assert runs[0][0] == runs[0][1] == runs[1][0] == runs[1][1]
    assert len(set(runs[0][0])) == 3
