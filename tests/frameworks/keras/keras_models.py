"""For test_keras_job.py: a small model, its data, and what all ranks must have alike."""

from __future__ import annotations

import importlib
import os
from typing import Any

import byteps.keras as bps
import numpy as np

# In a worker: the package that its job is about.
keras: Any = importlib.import_module(os.environ.get("TESTED_KERAS", "keras"))


def model_of(keras: Any, optimizer: Any, seed: int = 1, built: bool = True, **compile_options: Any) -> Any:
    keras.utils.set_random_seed(seed)
    first = [keras.layers.Input((8,))] if built else []
    model = keras.Sequential([*first, keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"], jit_compile=False, **compile_options)
    return model


def data(rank: int | None, size: int = 2, rows: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of the data, such that batch i of all ranks together is batch i of rank None, which has all."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(rows * size, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True) + 1
    return (x, y) if rank is None else (x[rank::size], y[rank::size])


def fit(model: Any, rank: int | None, epochs: int = 2, callbacks: Any = ()) -> Any:
    x, y = data(rank)
    batch = 16 if rank is None else 8
    return model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def weights_of(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def assert_same_on_all_ranks(model: Any) -> None:
    """Bit by bit, the optimizer's variables too."""
    variables = model.optimizer.variables
    of_optimizer = [np.asarray(v.numpy()) for v in (variables() if callable(variables) else variables)]
    # Accumulators are reset by a factor of 0, which leaves -0 here and 0 there.
    mine = b"".join((array + 0).tobytes() for array in [*model.get_weights(), *of_optimizer])
    for of in range(bps.size()):
        assert bps.broadcast_object(mine, of, name=f"weights of {of}") == mine
