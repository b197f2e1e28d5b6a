"""Ranks whose models differ: all of them hear so at once, and not when an operation has met its deadline."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

framework("keras")

import byteps.keras as bps
import numpy as np
from byteps.keras.callbacks import callbacks_of
from byteps.keras.flavor import is_keras_3

RunWorkers = Callable[..., Any]

# Of a worker that waits for another until the deadline the job's own deadline makes a failure.
WITHOUT_END = "3000"


def _layers(keras: Any, kind: str) -> list[Any]:
    """Of rank 1; those of rank 0 are of the kind "plain"."""
    first = keras.layers.Dense(4, name="hidden")
    if kind == "another name":
        first = keras.layers.Dense(4, name="other")
    elif kind == "another shape":
        first = keras.layers.Dense(5, name="hidden")
    elif kind == "another dtype":
        first = keras.layers.Dense(4, name="hidden", dtype="float16")
    elif kind == "frozen":
        first.trainable = False
    more = [keras.layers.Dense(4, name="more")] if kind == "another layer" else []
    return [first, *more, keras.layers.Dense(1, name="last")]


def _error(keras: Any, kind: str, broadcast: bool) -> str:
    """What this rank hears in fit()."""
    rank = bps.rank()
    model = keras.Sequential([keras.layers.Input((8,)), *_layers(keras, kind if rank == 1 else "plain")])
    model.compile(optimizer=bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=False)
    callbacks = [callbacks_of(keras).BroadcastGlobalVariablesCallback(0)] if broadcast else []
    x = np.ones([8, 8], np.float32)
    with pytest.raises(Exception) as caught:
        model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks)
    return f"{type(caught.value).__name__}: {caught.value}"


# By kind: what the first and the second rank have.
VARIABLES = {
    "another name": ("hidden/kernel of float32 [8, 4]", "other/kernel of float32 [8, 4]"),
    "another layer": ("last/kernel", "more/kernel"),
    "another shape": ("[8, 4]", "[8, 5]"),
    "another dtype": ("float32", "float16"),
}
GRADIENTS = {
    "another name": ("0.*hidden/kernel", "0.*other/kernel"),
    "another layer": ("2.*last/kernel", "2.*more/kernel"),
    "frozen": ("0.*hidden/kernel", "0.*last/kernel"),
}


def _all_kinds(package: str) -> dict[str, str]:
    keras = importlib.import_module(package)
    bps.init()
    errors = {f"variables: {kind}": _error(keras, kind, True) for kind in VARIABLES}
    errors |= {f"gradients: {kind}": _error(keras, kind, False) for kind in GRADIENTS}
    # The session is as good as before.
    assert bps.push_pull(np.ones(1), name="behind", average=False) == 2
    return errors


@pytest.mark.parametrize("package", ["tensorflow", "torch", "jax", "tf_keras"])
def test_models_that_differ(run_workers: RunWorkers, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: tools/setup --frameworks")
    if package != "tf_keras" and not is_keras_3(importlib.import_module("keras")):
        pytest.skip("of Keras 3 alone")
    name, backend = (package, None) if package == "tf_keras" else ("keras", package)
    job = run_workers(_all_kinds, name, BYTEPS_OP_TIMEOUT=WITHOUT_END, KERAS_BACKEND=backend)
    for errors in job.results:
        for what, kinds in (("variables", VARIABLES), ("gradients", GRADIENTS)):
            for kind, (of_first, of_second) in kinds.items():
                message = errors[f"{what}: {kind}"]
                assert message.startswith("FailedPreconditionError"), message
                expected = f"the ranks differ in the {what} .*: rank 0 has .*{of_first}.*, rank 1 has .*{of_second}"
                assert re.search(expected.replace("[", "\\["), message), message


def _slices_on_one_rank() -> str:
    keras = importlib.import_module("keras")
    bps.init()
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Embedding(7, 2), keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    # Whatever makes a gradient dense on one rank: here it is what sends it.
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1), sparse_as_dense=bps.rank() == 1)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    with pytest.raises(Exception) as caught:
        model.fit(np.zeros([4, 3], np.int32), np.zeros([4, 1]), verbose=0)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_slices_on_one_rank_alone(run_workers: RunWorkers) -> None:
    framework("tensorflow")
    for message in run_workers(_slices_on_one_rank, BYTEPS_OP_TIMEOUT=WITHOUT_END, KERAS_BACKEND="tensorflow").results:
        assert message.startswith("FailedPreconditionError"), message
        assert re.search(r"rank 0 has 0\.\S+ \(IndexedSlices\), rank 1 has 0\.[^ ]+\. Build", message), message
