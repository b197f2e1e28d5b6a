"""A part of the job of test_keras_job.py: gradients of several passes, loss scaling and mixed precision."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import byteps
import byteps.keras as bps
import numpy as np
import pytest
from byteps.keras.flavor import is_keras_3
from keras_models import assert_same_on_all_ranks, data, fit, keras, model_of, weights_of


def accumulated_gradients() -> None:
    """Two batches of half the size, for each update."""
    bps.init()
    sums = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
    model = model_of(keras, bps.DistributedOptimizer(sums))
    fit(model, bps.rank())
    alone = model_of(keras, keras.optimizers.SGD(0.01, gradient_accumulation_steps=2))
    fit(alone, None)
    assert_same_on_all_ranks(model)
    np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)

    for averages, rate in ((True, 0.01), (False, 0.005)):
        passes = bps.DistributedOptimizer(
            keras.optimizers.SGD(rate), backward_passes_per_step=2, average_aggregated_gradients=averages
        )
        model = model_of(keras, passes)
        fit(model, bps.rank())
        np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)


def accumulation_is_loaded_again() -> None:
    """The file has the number of steps; that it was a sum must be said again."""
    bps.init()
    passes = bps.DistributedOptimizer(keras.optimizers.SGD(0.01), backward_passes_per_step=2)
    model = model_of(keras, passes)
    fit(model, bps.rank())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        loaded = bps.load_model(path, backward_passes_per_step=2)
        with pytest.raises(ValueError, match="is 3, the optimizer's gradient_accumulation_steps 2"):
            bps.load_model(path, backward_passes_per_step=3)
    assert loaded.optimizer.built and loaded.optimizer.gradient_accumulation_steps == 2
    fit(model, bps.rank())
    loaded.compile(optimizer=loaded.optimizer, loss="mse", metrics=["mae"], jit_compile=False)
    fit(loaded, bps.rank())
    np.testing.assert_allclose(weights_of(loaded), weights_of(model), rtol=1e-6)


def accumulation_with_float8() -> None:
    """Scales of float8 layers take the place of the old ones; they are no part of the sum, and alike on all ranks."""
    # On JAX gradients travel at every step anyway, and a program with float8 takes a minute to compile.
    if not hasattr(keras.layers.Dense, "quantize") or keras.backend.backend() == "jax":
        return
    bps.init()
    model = model_of(keras, None)
    model.layers[0].quantize("float8")
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01), backward_passes_per_step=2)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    before = weights_of(model)
    fit(model, bps.rank())
    assert (weights_of(model) != before).any()
    for index, weight in enumerate(model.get_weights()):
        shared = bps.broadcast(weight, 0, name=f"weight {index}")
        np.testing.assert_array_equal(weight, shared, err_msg=model.weights[index].path)


def accumulated_gradients_are_scaled() -> None:
    """With the LossScaleOptimizer of mixed_float16, and with one that is given: the sum of two steps, or their mean."""
    bps.init()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        for averages, weight in ((False, -0.5), (True, 0.25)):
            for given in (lambda sgd: sgd, keras.optimizers.LossScaleOptimizer):
                optimizer = bps.DistributedOptimizer(
                    given(keras.optimizers.SGD(1.0)),
                    backward_passes_per_step=2,
                    average_aggregated_gradients=averages,
                )
                layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
                model = keras.Sequential([keras.layers.Input((1,)), layer])
                # The loss is the output: the gradient is the input, 0.75 over both ranks.
                model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
                model.fit(np.full([2, 1], 0.5 * (1 + bps.rank())), np.zeros([2, 1]), batch_size=1, verbose=0)
                assert float(np.ravel(model.get_weights()[0])[0]) == weight
    finally:
        keras.config.set_dtype_policy(before)


def overflow_of_one_rank() -> None:
    """Both skip the step and halve the scale, and none waits."""
    bps.init()
    for sgd in _kinds_of_sgd():
        optimizer = bps.DistributedOptimizer(_loss_scaling_of(keras)(sgd(0.01)))
        model = model_of(keras, optimizer)
        before = weights_of(model)
        x, y = data(bps.rank())
        overflowing = x * np.float32(np.inf) if bps.rank() == 1 else x
        scale = float(np.asarray(optimizer.initial_scale))
        model.fit(overflowing[:8], y[:8], batch_size=8, verbose=0)
        np.testing.assert_array_equal(weights_of(model), before)
        assert _scale_of(optimizer) == scale / 2
        fit(model, bps.rank())
        assert (weights_of(model) != before).any() and _scale_of(optimizer) == scale / 2
        assert_same_on_all_ranks(model)


def _loss_scaling_of(keras: Any) -> Any:
    return (keras.optimizers if is_keras_3(keras) else keras.mixed_precision).LossScaleOptimizer


def _kinds_of_sgd() -> list[Any]:
    """Of tf_keras the legacy one, too, whose loss scaling is a class of its own."""
    return [keras.optimizers.SGD, *([] if is_keras_3(keras) else [keras.optimizers.legacy.SGD])]


def _scale_of(optimizer: Any) -> float:
    scale = optimizer.dynamic_scale if is_keras_3(keras) else optimizer.loss_scale
    return float(np.asarray(scale.numpy()))


def overflow_of_a_local_layer() -> None:
    """Both ranks skip the step, though what they share is finite on both."""
    bps.init()
    given = keras.layers.Input((2,))
    shared, local = (keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2))
    model = keras.Model(given, keras.layers.Add()([shared(given[:, :1]), local(given[:, 1:])]))
    scaled = _loss_scaling_of(keras)(keras.optimizers.SGD(0.5))
    optimizer = bps.PartialDistributedOptimizer(scaled, local_layers=[local])
    # The loss is the output: the gradients are the inputs.
    model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
    for one, wanted in ((np.inf, [1, 1]), (2.0, [0.5, 0.5 if bps.rank() == 1 else 1])):
        x = np.array([[1, one if bps.rank() == 1 else 0]], "float32")
        model.fit(x, np.zeros([1, 1]), verbose=0)
        assert [float(np.ravel(weight)[0]) for weight in model.get_weights()] == wanted


def overflow_of_a_local_layer_while_a_rank_has_joined() -> None:
    """The rank that goes on skips the step, and takes the next one."""
    bps.init()
    given = keras.layers.Input((2,))
    shared, local = (keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2))
    model = keras.Model(given, keras.layers.Add()([shared(given[:, :1]), local(given[:, 1:])]))
    scaled = _loss_scaling_of(keras)(keras.optimizers.SGD(0.5))
    optimizer = bps.PartialDistributedOptimizer(scaled, local_layers=[local])
    model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
    # Of both ranks, whose local gradients overflow on both; then of rank 1 alone.
    for one, wanted in ((np.inf, [1, 1]), (np.inf, [1, 1]), (2.0, [0.75, 0.5]))[: 1 + 2 * bps.rank()]:
        model.fit(np.array([[1, one]], "float32"), np.zeros([1, 1]), verbose=0)
        assert [float(np.ravel(weight)[0]) for weight in model.get_weights()] == wanted
    assert byteps.join() == 1


def norm_of_all_with_local_layers_is_refused() -> None:
    bps.init()
    for around in (lambda sgd: sgd, _loss_scaling_of(keras)):
        model = model_of(keras, keras.optimizers.SGD(0.1))
        with pytest.raises(ValueError, match="local variables use clipnorm or clipvalue"):
            clipping = around(keras.optimizers.SGD(0.1, global_clipnorm=1.0))
            bps.PartialDistributedOptimizer(clipping, local_layers=model.layers[-1:])
    # Set behind it.
    optimizer = bps.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=model.layers[-1:])
    optimizer.global_clipnorm = 1.0
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    with pytest.raises(ValueError, match="local variables use clipnorm or clipvalue"):
        fit(model, bps.rank())


def loss_scaling_outside_is_refused() -> None:
    bps.init()
    inner = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model = model_of(keras, _loss_scaling_of(keras)(inner))
    with pytest.raises(ValueError, match="Put it inside"):
        fit(model, bps.rank())


def constant_loss_scaling_outside() -> None:
    """It looks at no gradients: all workers take each step."""
    bps.init()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
    scaled = _loss_scaling_of(keras)(optimizer, dynamic=False, initial_scale=8.0)
    model = model_of(keras, scaled, seed=bps.rank())
    model.set_weights(bps.broadcast_object(model.get_weights(), 0))
    before = weights_of(model)
    fit(model, bps.rank())
    assert (weights_of(model) != before).any()
    assert_same_on_all_ranks(model)


def mixed_precision() -> None:
    """compile() would put loss scaling around the optimizer: it is inside already."""
    bps.init()
    if is_keras_3(keras):
        before, set_policy = keras.config.dtype_policy(), keras.config.set_dtype_policy
    else:
        before, set_policy = keras.mixed_precision.global_policy(), keras.mixed_precision.set_global_policy
    set_policy("mixed_float16")
    try:
        for sgd in _kinds_of_sgd():
            optimizer = bps.DistributedOptimizer(sgd(0.01))
            assert isinstance(optimizer, _loss_scaling_of(keras))
            model = model_of(keras, optimizer)
            assert model.optimizer is optimizer
            start = weights_of(model)
            fit(model, bps.rank())
            assert (weights_of(model) != start).any()
            assert_same_on_all_ranks(model)
            # One that is given is not put into another.
            given = _loss_scaling_of(keras)(sgd(0.01))
            assert bps.DistributedOptimizer(given) is given
    finally:
        set_policy(before)
