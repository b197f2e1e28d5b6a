"""A part of the job of test_keras_job.py: callbacks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import byteps
import byteps.keras as bps
import numpy as np
import pytest
from byteps.keras.callbacks import callbacks_of
from byteps.keras.flavor import is_keras_3
from keras_models import assert_same_on_all_ranks, fit, keras, model_of, weights_of


def broadcast_of_a_model_that_is_not_built() -> None:
    """On one rank alone, so that the ranks must agree when to broadcast."""
    bps.init()
    callbacks = callbacks_of(keras)
    built = bps.rank() == 1
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model = model_of(keras, optimizer, seed=bps.rank(), built=built)
    fit(model, bps.rank(), callbacks=[callbacks.BroadcastGlobalVariablesCallback(1)])
    assert_same_on_all_ranks(model)


def metrics_of_all() -> None:
    bps.init()
    callbacks = callbacks_of(keras)
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    own = fit(model, bps.rank(), epochs=1).history["mae"][0]
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    average = fit(model, bps.rank(), epochs=1, callbacks=[callbacks.MetricAverageCallback()]).history["mae"][0]
    others = [bps.broadcast_object(own, of, name=f"own {of}") for of in range(2)]
    assert others[0] != others[1]
    np.testing.assert_allclose(average, sum(others) / 2, rtol=1e-6)
    logs = {"a" if bps.rank() == 0 else "b": 1.0}
    with pytest.raises(ValueError, match="different metrics"):
        callbacks.MetricAverageCallback().on_epoch_end(0, logs)


def metrics_that_are_arrays() -> None:
    """As of F1Score(average=None): averaged element by element, and arrays as before."""
    bps.init()
    average = callbacks_of(keras).MetricAverageCallback()
    logs: dict[str, Any] = {"f1": np.arange(3, dtype=np.float32) + bps.rank(), "loss": 1.0 * bps.rank()}
    logs["table"] = np.full((2, 2), bps.rank())
    average.on_epoch_end(0, logs)
    assert logs["loss"] == 0.5 and isinstance(logs["loss"], float)
    np.testing.assert_array_equal(logs["f1"], np.arange(3) + np.float32(0.5))
    assert logs["f1"].dtype == np.float32
    np.testing.assert_array_equal(logs["table"], np.full((2, 2), 0.5))
    with pytest.raises(ValueError, match="different metrics"):
        average.on_epoch_end(0, {"f1": np.zeros((2, 3) if bps.rank() == 0 else (3, 2))})
    with pytest.raises(byteps.FailedPreconditionError):
        average.on_epoch_end(0, {"f1": np.zeros(2 + bps.rank())})


def callbacks_of_the_installed_keras() -> None:
    """byteps.keras's own, which are those of Keras 3 where both are installed, in fit() of tf_keras, too."""
    bps.init()
    alone = model_of(keras, keras.optimizers.SGD(0.01))
    fit(alone, None)
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model = model_of(keras, optimizer, seed=1 + bps.rank())
    state = bps.elastic.KerasState(model, epoch=0, batch=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "best.h5"
        callbacks = [
            bps.callbacks.BroadcastGlobalVariablesCallback(0),
            bps.callbacks.MetricAverageCallback(),
            bps.callbacks.LearningRateScheduleCallback(1.0),
            bps.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path)),
            bps.elastic.UpdateBatchStateCallback(state),
            bps.elastic.UpdateEpochStateCallback(state),
            bps.elastic.CommitStateCallback(state, 2),
        ]
        history = fit(model, bps.rank(), callbacks=callbacks).history
        assert path.exists() == (bps.rank() == 0)
    assert_same_on_all_ranks(model)
    np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)
    assert history["lr"] == pytest.approx([0.01, 0.01]) and (state.epoch, state.batch) == (2, 0)
    assert bps.broadcast_object(history["mae"], 0) == history["mae"]


def learning_rates() -> None:
    bps.init()
    callbacks = callbacks_of(keras)
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    warmup = callbacks.LearningRateWarmupCallback(warmup_epochs=2)
    schedule = callbacks.LearningRateScheduleCallback(lambda epoch: 0.5**epoch, start_epoch=2, initial_lr=0.1)
    history = fit(model, bps.rank(), epochs=4, callbacks=[warmup, schedule]).history
    np.testing.assert_allclose(history["lr"], [0.075, 0.1, 0.025, 0.0125], rtol=1e-5)
    with pytest.raises(TypeError, match="initial_lr"):
        callbacks.LearningRateScheduleCallback(0.1, lambda epoch: epoch)


def momentum_correction() -> None:
    """Three steps of gradient 1, of which the third has twice the learning rate; against the formula."""
    bps.init()
    callbacks = callbacks_of(keras)
    kinds = [keras.optimizers.SGD]
    if hasattr(keras.optimizers, "legacy") and not is_keras_3(keras):
        kinds.append(keras.optimizers.legacy.SGD)
    for kind in kinds:
        for corrected in (True, False):
            layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            x = keras.layers.Input((1,))
            model = keras.Model(x, layer(x))
            optimizer = bps.DistributedOptimizer(kind(0.25, momentum=0.5))
            model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
            schedule = callbacks.LearningRateScheduleCallback(
                lambda epoch: 1 if epoch < 2 else 2, momentum_correction=corrected
            )
            ones = np.ones([1, 1], "float32")
            model.fit(ones, ones, batch_size=1, epochs=3, verbose=0, callbacks=[schedule])
            velocities = [0.25, 0.375, (2 if corrected else 1) * 0.1875 + 0.5]
            np.testing.assert_allclose(np.ravel(layer.get_weights()[0]), [-sum(velocities)], rtol=1e-6)


def momentum_with_and_without_learning_rates() -> None:
    """That of SGD and RMSprop, and of classes derived from them, has learning rates in it; Muon's is of gradients."""
    bps.init()
    callbacks = callbacks_of(keras)
    of = keras.optimizers

    class Own(of.SGD):
        pass

    kinds = [(lambda kind=kind: kind(0.01, momentum=0.5), True) for kind in (Own, of.RMSprop)]
    scaling = (of if is_keras_3(keras) else keras.mixed_precision).LossScaleOptimizer
    kinds.append((lambda: scaling(of.SGD(0.01, momentum=0.5)), True))
    if not is_keras_3(keras):
        kinds.append((lambda: of.legacy.RMSprop(0.01, momentum=0.5), True))
    if hasattr(of, "Muon"):
        kinds.append((lambda: of.Muon(0.01), False))
    for make, corrects in kinds:
        found = []
        for corrected in (True, False):
            schedule = callbacks.LearningRateScheduleCallback(lambda epoch: 0.1**epoch, momentum_correction=corrected)
            model = model_of(keras, bps.DistributedOptimizer(make()))
            fit(model, bps.rank(), epochs=3, callbacks=[schedule])
            found.append(weights_of(model))
        assert (np.abs(found[0] - found[1]).max() > 1e-5) == corrects, (type(model.optimizer), found)


def best_model_of_rank_0() -> None:
    bps.init()
    callbacks = callbacks_of(keras)
    with tempfile.TemporaryDirectory() as folder:
        # Keras 2.13 and 2.14 cannot save checkpoints in the new format.
        old = keras.__version__.startswith(("2.13.", "2.14."))
        path = Path(folder) / ("best.h5" if old else "best.keras")
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
        best = callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
        fit(model, bps.rank(), callbacks=[callbacks.MetricAverageCallback(), best])
        assert path.exists() == (bps.rank() == 0)
        weights = callbacks.BestModelCheckpoint("loss", 0, True, "min", "epoch")
        weights.filepath = str(Path(folder) / "best.weights.h5")
        fit(model, bps.rank(), callbacks=[callbacks.MetricAverageCallback(), weights])
        assert Path(weights.filepath).exists() == (bps.rank() == 0)
