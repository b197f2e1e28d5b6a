"""A part of the job of test_keras_job.py: SyncBatchNormalization."""

from __future__ import annotations

from typing import Any

import byteps.keras as bps
import numpy as np
import pytest
from byteps.keras.callbacks import callbacks_of
from byteps.keras.sync_batch_norm import layer_of
from keras_models import assert_same_on_all_ranks, data, keras, weights_of


def _normalizing(kind: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Input((8,)), kind(name="norm", **options), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.SGD(0.05)
    wrapped = bps.DistributedOptimizer(optimizer) if kind is bps_layer() else optimizer
    model.compile(optimizer=wrapped, loss="mse", metrics=["mae"], jit_compile=False)
    return model


def bps_layer() -> Any:
    """SyncBatchNormalization of the package that this job is about."""
    return layer_of(keras)


def synchronized_batch_normalization() -> None:
    bps.init()
    x, y = data(None)
    x = x + np.float32(3)
    alone = _normalizing(keras.layers.BatchNormalization)
    alone.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    model = _normalizing(bps_layer())
    rank = bps.rank()
    model.fit(x[rank::2], y[rank::2], batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_same_on_all_ranks(model)
    np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=1e-3, atol=1e-3)
    local = _normalizing(keras.layers.BatchNormalization)
    local.fit(x[rank::2], y[rank::2], batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert np.abs(weights_of(local) - weights_of(alone)).max() > 0.01, "a test that cannot fail"


def one_rank_alone_traces_again() -> None:
    """Its last batch is smaller than that of the other rank, and the layer is used twice in a step."""
    bps.init()
    x, y = data(bps.rank())
    keras.utils.set_random_seed(3)
    inputs = keras.layers.Input((8,))
    twice = bps_layer()()
    hidden = twice(bps_layer()()(inputs))
    outputs = keras.layers.Dense(1)(twice(keras.layers.Dense(8)(hidden)))
    model = keras.Model(inputs, outputs)
    compiled = keras.backend.backend() == "jax"
    model.compile(optimizer=bps.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse", jit_compile=compiled)
    rows = 24 - bps.rank()
    model.fit(x[:rows], y[:rows], batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_same_on_all_ranks(model)


def statistics_are_averaged() -> None:
    bps.init()
    rank = bps.rank()
    x, y = data(rank)
    x = x + np.float32(3 * rank)

    def trained(*callbacks: Any) -> Any:
        model = _normalizing(keras.layers.BatchNormalization)
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.05))
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model

    own = trained()
    averaged = trained(callbacks_of(keras).AverageStatisticsCallback())
    for weight, found in zip(own.non_trainable_weights, averaged.non_trainable_weights):
        values = [bps.broadcast_object(np.asarray(weight.numpy()), of) for of in range(2)]
        assert np.abs(values[0] - values[1]).max() > 0.01, "a test that cannot fail"
        np.testing.assert_allclose(np.asarray(found.numpy()), (values[0] + values[1]) / 2, rtol=1e-5)
    assert_same_on_all_ranks(averaged)


def batches_of_different_sizes_are_normalized_together() -> None:
    bps.init()
    # Far from 0, where a sum of squares would lose the variance.
    x = data(None)[0][:16] + np.float32(1000)
    whole = (x - x.mean(0, dtype=np.float64)) / np.sqrt(x.var(0, dtype=np.float64) + 1e-3)
    layer = bps_layer()()
    result = keras.ops.convert_to_numpy(layer(x[:5] if bps.rank() == 0 else x[5:], training=True))
    np.testing.assert_allclose(result, whole[:5] if bps.rank() == 0 else whole[5:], rtol=1e-3, atol=1e-3)
    x -= 1000
    images = np.stack([x.reshape(16, 2, 4)] * 3, 1)
    steps = np.ones([5 if bps.rank() == 0 else 11, 3, 2], bool)
    steps[:, 0] = False  # masked: does not count
    layer = bps_layer()()
    changed = images[:5] if bps.rank() == 0 else images[5:]
    changed = np.where(steps[..., None], changed, 100.0).astype("float32")
    layer(changed, training=True, mask=keras.ops.convert_to_tensor(steps))
    mean = 0.01 * images.reshape(-1, 4).mean(0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer.moving_mean), mean, rtol=1e-3, atol=1e-5)


def wrong_arguments_of_batch_normalization() -> None:
    bps.init()
    with pytest.raises(ValueError, match="fused"):
        bps_layer()(fused=True)
    with pytest.raises(ValueError, match="synchronized"):
        bps_layer()(synchronized=True)
    mine = [bps.add_process_set([rank]) for rank in range(2)][bps.rank()]
    config = bps_layer()(momentum=0.5, process_set=mine, name="n").get_config()
    again = bps_layer().from_config(config)
    assert (again.momentum, again.name, bps_layer().__name__) == (0.5, "n", "SyncBatchNormalization")
