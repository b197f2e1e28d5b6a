"""tf.keras that is tf_keras (TF_USE_LEGACY_KERAS=1), over two workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")
framework("tf_keras")

import byteps.tensorflow as bps
import numpy as np
from jobs import Outcomes, clean_environment, launcher_command, run_job
from keras_models import assert_same_on_all_ranks, fit, model_of, weights_of


def _fit() -> None:
    """With all callbacks, as one process on the double batch."""
    import byteps.tensorflow.keras as of_keras

    of_keras.init()
    assert not hasattr(tf.keras, "__version__") and "tf_keras" in tf.keras.layers.Dense.__module__
    alone = model_of(tf.keras, tf.keras.optimizers.SGD(0.01, momentum=0.9))
    fit(alone, None)
    optimizer = of_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01, momentum=0.9))
    model = model_of(tf.keras, optimizer, seed=1 + of_keras.rank())
    state = of_keras.elastic.KerasState(model, epoch=0, batch=0)
    callbacks = of_keras.callbacks
    given = [
        callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.MetricAverageCallback(),
        callbacks.LearningRateScheduleCallback(1.0),
        of_keras.elastic.UpdateEpochStateCallback(state),
    ]
    assert all(isinstance(each, tf.keras.callbacks.Callback) for each in given)
    history = fit(model, of_keras.rank(), callbacks=given).history
    assert_same_on_all_ranks(model)
    np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)
    assert history["lr"] == pytest.approx([0.01, 0.01]) and state.epoch == 2
    assert of_keras.broadcast_object(history["mae"], 0) == history["mae"]


def _warmup_and_statistics() -> None:
    import byteps.horovod.tensorflow.keras as hvd

    hvd.init()
    model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.BatchNormalization()])
    model.add(tf.keras.layers.Dense(1))
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.1)), "mse", jit_compile=False)
    warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2)
    averages = bps.keras.callbacks.AverageStatisticsCallback()
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = fit(model, hvd.rank(), callbacks=[start, warmup, averages]).history
    np.testing.assert_allclose(history["lr"], [0.075, 0.1], rtol=1e-5)
    assert_same_on_all_ranks(model)


def _synchronized_batch_normalization() -> None:
    """As one process that has the batches of both."""
    bps.init()
    x = np.random.default_rng(3).normal(size=(8, 3)).astype("float32")
    layer, plain = bps.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    assert isinstance(layer, tf.keras.layers.BatchNormalization)
    expected = plain(x, training=True).numpy()
    own = layer(x[bps.rank() :: 2], training=True).numpy()
    np.testing.assert_allclose(own, expected[bps.rank() :: 2], rtol=1e-4, atol=1e-5)
    for mine, its in zip(layer.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)


BODIES = [_fit, _warmup_and_statistics, _synchronized_batch_normalization]


@pytest.fixture(scope="module")
def legacy_outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """A job of two workers and one server with the variable set that has run the bodies."""
    variables = {"BYTEPS_OP_TIMEOUT": "120", "TF_USE_LEGACY_KERAS": "1", "TESTED_KERAS": "tf_keras"}
    folder, launcher = tmp_path_factory.mktemp("job"), launcher_command(2, 1)
    return Outcomes(run_job(folder, launcher, 2, BODIES, (), clean_environment(**variables), check=False))


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], Any], legacy_outcomes: Outcomes) -> None:
    legacy_outcomes.check(body)
