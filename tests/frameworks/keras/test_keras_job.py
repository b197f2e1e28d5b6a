"""byteps.keras over two workers: what every Keras must do, in a job for each backend of Keras 3 and for tf_keras."""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import framework

framework("keras")

import byteps
import byteps.keras as bps
import numpy as np
from byteps.keras.arrays import to_array
from byteps.keras.callbacks import callback_class, callbacks_of
from byteps.keras.elastic import CommitState, UpdateEpochState, model_variables
from byteps.keras.flavor import is_keras_3
from byteps.keras.optimizer import is_distributed
from byteps.keras.sync_batch_norm import layer_of
from jobs import Outcomes, clean_environment, launcher_command, run_job

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


def _local_variables_stay() -> None:
    bps.init()
    model = model_of(keras, keras.optimizers.SGD(0.01), seed=1 + bps.rank())
    own = model.get_weights()[0]
    local = model.weights[0]
    callback = callbacks_of(keras).BroadcastGlobalVariablesCallback(0, local_variables=(v for v in [local]))
    callback.set_model(model)
    callback.on_train_begin()
    np.testing.assert_array_equal(model.get_weights()[0], own)
    others = b"".join(weight.tobytes() for weight in model.get_weights()[1:])
    assert bps.broadcast_object(others, 0) == others

    class Variable:
        pass

    gone = Variable()
    lives = weakref.ref(gone)
    callback = callbacks_of(keras).BroadcastGlobalVariablesCallback(0, local_variables=[gone])
    del gone
    gc.collect()
    # Else another variable may get its id, and would be taken for a local one.
    assert lives() is not None and callback is not None


def _as_one_process_on_the_double_batch() -> None:
    bps.init()
    callbacks = callbacks_of(keras)
    for kind in ("SGD", "Adam"):
        make = getattr(keras.optimizers, kind)
        alone = model_of(keras, make(0.01))
        fit(alone, None)
        # Weights and what the optimizer remembers begin as different as they can.
        model = model_of(keras, bps.DistributedOptimizer(make(0.01)), seed=1 + bps.rank())
        fit(model, bps.rank(), callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)])
        assert_same_on_all_ranks(model)
        np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)


def _clipping_and_averages_after_the_reduction() -> None:
    bps.init()
    options = {"global_clipnorm": 0.5, "use_ema": True, "ema_momentum": 0.9, "weight_decay": 0.01}
    alone = model_of(keras, keras.optimizers.Adam(0.01, **options))
    fit(alone, None)
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.Adam(0.01, **options)))
    fit(model, bps.rank())
    assert_same_on_all_ranks(model)
    np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)


def _compressed() -> None:
    bps.init()
    for compression in (bps.Compression.fp16, bps.Compression.bf16):
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression))
        fit(model, bps.rank())
        assert_same_on_all_ranks(model)
        alone = model_of(keras, keras.optimizers.SGD(0.01))
        fit(alone, None)
        assert np.abs(weights_of(model) - weights_of(alone)).max() < 0.02
        assert (weights_of(model) != weights_of(alone)).any()


def _broadcast_of_a_model_that_is_not_built() -> None:
    """On one rank alone, so that the ranks must agree when to broadcast."""
    bps.init()
    callbacks = callbacks_of(keras)
    built = bps.rank() == 1
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model = model_of(keras, optimizer, seed=bps.rank(), built=built)
    fit(model, bps.rank(), callbacks=[callbacks.BroadcastGlobalVariablesCallback(1)])
    assert_same_on_all_ranks(model)


def _metrics_of_all() -> None:
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


def _metrics_that_are_arrays() -> None:
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


def _callbacks_of_the_installed_keras() -> None:
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


def _learning_rates() -> None:
    bps.init()
    callbacks = callbacks_of(keras)
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    warmup = callbacks.LearningRateWarmupCallback(warmup_epochs=2)
    schedule = callbacks.LearningRateScheduleCallback(lambda epoch: 0.5**epoch, start_epoch=2, initial_lr=0.1)
    history = fit(model, bps.rank(), epochs=4, callbacks=[warmup, schedule]).history
    np.testing.assert_allclose(history["lr"], [0.075, 0.1, 0.025, 0.0125], rtol=1e-5)
    with pytest.raises(TypeError, match="initial_lr"):
        callbacks.LearningRateScheduleCallback(0.1, lambda epoch: epoch)


def _momentum_correction() -> None:
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


def _saved_and_loaded() -> None:
    bps.init()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.Adam(0.01)))
        fit(model, bps.rank())
        model.save(path)
        plain = keras.models.load_model(path)
        assert isinstance(plain.optimizer, keras.optimizers.Adam) and not is_distributed(plain.optimizer)
        loaded = bps.load_model(path, keras=keras)
        assert is_distributed(loaded.optimizer)
        assert isinstance(loaded.optimizer, keras.optimizers.Adam)
        assert int(np.asarray(loaded.optimizer.iterations.numpy())) == 8
    # Goes on as it would have, and with the gradients of both.
    fit(model, bps.rank())
    loaded.compile(optimizer=loaded.optimizer, loss="mse", metrics=["mae"], jit_compile=False)
    fit(loaded, bps.rank())
    np.testing.assert_allclose(weights_of(loaded), weights_of(model), rtol=1e-6)
    assert_same_on_all_ranks(loaded)


def _saved_as_the_plain_optimizer() -> None:
    bps.init()

    @keras.utils.register_keras_serializable("tests")
    class Registered(keras.optimizers.Adam):
        pass

    kinds = [keras.optimizers.Adam, Registered]
    if is_keras_3(keras):
        kinds.append(lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate)))
    else:
        legacy = keras.optimizers.legacy.Adam
        scaled = keras.mixed_precision.LossScaleOptimizer
        kinds += [legacy, lambda rate: scaled(keras.optimizers.SGD(rate)), lambda rate: scaled(legacy(rate))]
    for make in kinds:
        plain, optimizer = make(0.01), bps.DistributedOptimizer(make(0.01))
        assert type(optimizer).__name__ == type(plain).__name__
        # On PyTorch Keras names a class that other backends do not have.
        if not type(plain).__module__.startswith("keras.src.backend."):
            written = [keras.optimizers.serialize(one) for one in (optimizer, plain)]
            # The configuration has the object's name, which Keras numbers.
            for key in ("module", "class_name", "registered_name"):
                assert written[0][key] == written[1][key], written
        model = model_of(keras, "sgd")
        model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError(), jit_compile=False)
        fit(model, bps.rank(), epochs=1)
        # Keras 2.13 cannot read its own files of the new format with legacy optimizers or loss scaling, BytePS or not.
        unreadable = keras.__version__.startswith("2.13.") and make not in kinds[:2]
        for ending in ("h5",) if unreadable else ("keras", "h5"):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"model.{ending}"
                model.save(path)
                found = keras.models.load_model(path).optimizer
                assert type(found) is type(plain), (ending, found)
                found = bps.load_model(path, keras=keras).optimizer
                assert is_distributed(found) and isinstance(found, type(plain)), (ending, found)


def _copies_stay_distributed() -> None:
    """With all settings: trained on each rank's own data, they are what the model is that they are copies of."""
    bps.init()
    ways = [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))]
    # Other releases leave the clone uncompiled.
    if is_keras_3(keras) and keras.models.clone_model(model_of(keras, "sgd")).optimizer is not None:
        ways.append(keras.models.clone_model)
    for number, way in enumerate(ways):
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.005), name=f"of {number}", op=bps.Sum)
        model = model_of(keras, optimizer)
        fit(model, bps.rank(), epochs=1)
        copied = way(model)
        assert copied.optimizer is not optimizer and is_distributed(copied.optimizer)
        assert copied.optimizer._bps_settings == optimizer._bps_settings
        copied.set_weights(model.get_weights())
        fit(copied, bps.rank())
        fit(model, bps.rank())
        np.testing.assert_allclose(weights_of(copied), weights_of(model), rtol=1e-6)
        assert_same_on_all_ranks(copied)
    assert not is_distributed(copy.deepcopy(model_of(keras, "sgd")).optimizer)


def _copies_of_local_layers() -> None:
    bps.init()
    rank = bps.rank()
    keras.utils.set_random_seed(1)
    local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential(
        [keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), local]
    )
    optimizer = bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[local])
    model.compile(optimizer=optimizer, loss=_loss_of_the_output, jit_compile=False)
    copied = copy.deepcopy(model)
    copied.compile(optimizer=copied.optimizer, loss=_loss_of_the_output, jit_compile=False)
    copied.fit(np.full([1, 1], rank + 1.0), np.zeros([1, 1]), verbose=0)
    assert [float(np.ravel(weight)[0]) for weight in copied.get_weights()] == [1 - 1.5, 1 - (rank + 1) / 2]


@keras.utils.register_keras_serializable("tests")
def _loss_of_the_output(_: Any, prediction: Any) -> Any:
    return prediction


def _copies_of_optimizers() -> None:
    """Alone, as far as Keras copies its own."""
    bps.init()
    mine = [bps.add_process_set([rank]) for rank in range(2)][bps.rank()]
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(0.25), name="given", process_set=mine)

    def pickled(given: Any) -> Any:
        return pickle.loads(pickle.dumps(given))

    for way in (copy.copy, copy.deepcopy, pickled, lambda given: type(given).from_config(given.get_config())):
        try:
            way(keras.optimizers.Adam(0.25))
        except Exception:  # Keras's own cannot be copied that way
            continue
        copied = way(optimizer)
        assert copied is not optimizer and is_distributed(copied) and isinstance(copied, keras.optimizers.Adam)
        assert copied._bps_settings == optimizer._bps_settings and copied._bps_settings.options.process_set is mine
        assert float(np.asarray(copied.learning_rate)) == 0.25
    # What is no object of this process is as Keras writes it, so that it can be read without BytePS.
    again = keras.optimizers.get(keras.optimizers.serialize(optimizer))
    assert isinstance(again, keras.optimizers.Adam) and not is_distributed(again)
    if not is_keras_3(keras):
        return
    written = pickle.dumps(optimizer)
    assert bps.remove_process_set(mine)
    with pytest.raises(ValueError, match="which the job does not know"):
        pickle.loads(written)
    layer = keras.layers.Dense(1)
    layer.build((None, 1))
    partial = bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layer)
    for way in (copy.deepcopy, pickled):
        with pytest.raises(TypeError, match="Copy the model"):
            way(partial)


def _best_model_of_rank_0() -> None:
    bps.init()
    callbacks = callbacks_of(keras)
    with tempfile.TemporaryDirectory() as folder:
        # Keras 2 of TensorFlow 2.13 cannot save checkpoints in the new format.
        path = Path(folder) / ("best.h5" if keras.__version__.startswith("2.13.") else "best.keras")
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
        best = callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
        fit(model, bps.rank(), callbacks=[callbacks.MetricAverageCallback(), best])
        assert path.exists() == (bps.rank() == 0)


def _of_local_layers() -> None:
    """The gradients of a local layer stay this rank's own, divided by the number of ranks unless asked otherwise."""
    bps.init()
    rank = bps.rank()
    for options, share in (({}, 2.0), ({"scale_local_gradients": False}, 1.0)):
        keras.utils.set_random_seed(1)
        local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential(
            [keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), local]
        )
        optimizer = bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[local], **options)
        # The loss is the output: both gradients are the input, rank + 1.
        model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
        model.fit(np.full([1, 1], rank + 1.0), np.zeros([1, 1]), verbose=0)
        shared, own = (float(np.ravel(weight)[0]) for weight in model.get_weights())
        assert (shared, own) == (1 - 1.5, 1 - (rank + 1) / share)
    with pytest.raises(ValueError, match="is not built"):
        bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=keras.layers.Dense(1))


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


def _synchronized_batch_normalization() -> None:
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


def _one_rank_alone_traces_again() -> None:
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


def _statistics_are_averaged() -> None:
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


def _batches_of_different_sizes_are_normalized_together() -> None:
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


def _wrong_arguments_of_batch_normalization() -> None:
    bps.init()
    with pytest.raises(ValueError, match="fused"):
        bps_layer()(fused=True)
    with pytest.raises(ValueError, match="synchronized"):
        bps_layer()(synchronized=True)
    mine = [bps.add_process_set([rank]) for rank in range(2)][bps.rank()]
    config = bps_layer()(momentum=0.5, process_set=mine, name="n").get_config()
    again = bps_layer().from_config(config)
    assert (again.momentum, again.name, bps_layer().__name__) == (0.5, "n", "SyncBatchNormalization")


def _values() -> None:
    bps.init()
    rank = bps.rank()
    np.testing.assert_array_equal(bps.push_pull(np.array([1.0, 2]) * (rank + 1)), [1.5, 3])
    assert bps.push_pull(rank + 1, average=False) == 3
    np.testing.assert_array_equal(bps.allreduce([rank * 1.0], prescale_factor=4.0), [2])
    np.testing.assert_array_equal(bps.broadcast(np.array(["rank", str(rank)]), 1), ["rank", "1"])
    np.testing.assert_array_equal(bps.allgather(np.full([rank + 1, 2], rank)), [[0, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(bps.reducescatter(np.full([3], rank + 1.0)), [1.5] * (2 - rank))
    np.testing.assert_allclose(bps.push_pull(np.eye(2)[rank], op=bps.Adasum), [1, 1])
    variable = keras.Variable([1.0 * rank]) if hasattr(keras, "Variable") else None
    if variable is not None:
        np.testing.assert_array_equal(bps.push_pull(variable), [0.5])


def _values_of_pytorch() -> None:
    """Tensors that have a gradient, and those of types that NumPy has from ml_dtypes."""
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bps.init()
    rank = bps.rank()
    learnt = torch.full((2,), 1.0 * rank, requires_grad=True)
    for value in (learnt, learnt * 1, torch.nn.Parameter(learnt.detach())):
        np.testing.assert_array_equal(bps.push_pull(value), [0.5, 0.5])
    narrow = torch.full((2, 3), rank + 1.0, dtype=torch.bfloat16).T
    reduced = bps.push_pull(narrow, average=False)
    assert (reduced.dtype, reduced.shape) == (ml_dtypes.bfloat16, (3, 2)) and (reduced == 3).all()
    assert bps.push_pull(torch.tensor(rank + 1.0, dtype=torch.bfloat16), average=False) == 3
    np.testing.assert_array_equal(bps.push_pull(torch.tensor([1j * rank]).conj(), average=False), [-1j])
    if hasattr(torch, "float8_e4m3fn"):
        found = bps.broadcast(torch.full((2,), rank + 1.0).to(torch.float8_e4m3fn), 1)
        assert found.dtype == ml_dtypes.float8_e4m3fn and (found.astype(float) == 2).all()


def _broadcasts_of_different_arrays_are_refused() -> None:
    """Of as many bytes, which would be taken for values of another type or in another place."""
    bps.init()
    rank = bps.rank()
    for number, (ours, theirs) in enumerate(
        (
            (np.zeros(4, np.float32), np.zeros(4, np.int32)),
            (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)),
            (np.zeros((2, 3), np.uint32), np.zeros((3, 2), np.uint32)),
            (np.zeros(4, np.uint32), np.zeros(2, np.uint64)),
        )
    ):
        with pytest.raises(byteps.FailedPreconditionError):
            bps.broadcast(ours if rank == 0 else theirs, 0, name=f"mismatch {number}")
    # Others of one size have names of their own, and wait until the deadline.
    assert (
        len(
            {
                byteps.keras.arrays._type_name(np.dtype(kind))
                for kind in ("<u4", ">u4", ">f4", "M8[s]", "M8[D]", "S4", "V4")
            }
        )
        == 7
    )
    for dtype in (np.uint32, ">f4", "M8[s]", np.bool_, np.complex128, "S3", np.longdouble):
        for shape in ((), (0, 2), (3, 1)):
            given = np.full(shape, rank + 1).astype(dtype)
            found = bps.broadcast(given, 1)
            assert (found.dtype, found.shape) == (given.dtype, shape)
            np.testing.assert_array_equal(found, np.full(shape, 2).astype(dtype))
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(2 + rank, use_bias=False)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    with pytest.raises(byteps.FailedPreconditionError):
        bps.elastic.KerasState(model).sync()
    assert bps.push_pull(1.0, average=False) == 2


def _process_set_of_one() -> None:
    """Its gradients are its own: as a plain optimizer on this rank's data."""
    bps.init()
    mine = [bps.add_process_set([rank]) for rank in range(2)][bps.rank()]
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01), process_set=mine))
    fit(model, bps.rank(), epochs=1)
    plain = model_of(keras, keras.optimizers.SGD(0.01))
    fit(plain, bps.rank(), epochs=1)
    np.testing.assert_array_equal(weights_of(model), weights_of(plain))


def _state_before_the_first_step() -> None:
    """The optimizer's variables are part of a state that was made before it has any."""
    bps.init()
    kinds = [bps.elastic.KerasState]
    if keras.backend.backend() == "tensorflow":
        from byteps.tensorflow.elastic import TensorFlowKerasState

        kinds.append(TensorFlowKerasState)
    legacy = None if is_keras_3(keras) else getattr(keras.optimizers, "legacy", None)
    for kind in kinds:
        for optimizers in (keras.optimizers, *([legacy] if legacy else [])):
            model = model_of(keras, bps.DistributedOptimizer(optimizers.Adam(0.01)))
            state = kind(model, epoch=0)
            start = [np.array(variable) for variable in model_variables(model, model.optimizer)]
            fit(model, bps.rank())
            changed = [np.array(variable) for variable in model_variables(model, model.optimizer)]
            assert [array.shape for array in changed] == [array.shape for array in start]
            assert all((one != other).any() for one, other in zip(start, changed) if one.size > 4)
            state.restore()
            for one, other in zip(start, model_variables(model, model.optimizer)):
                np.testing.assert_array_equal(one, np.array(other))


def _state() -> None:
    bps.init()
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.Adam(0.01)), seed=bps.rank())
    state = bps.elastic.KerasState(model, epoch=bps.rank(), batch=0)
    state.sync(root_rank=1)
    assert state.epoch == 1
    assert_same_on_all_ranks(model)
    before = weights_of(model)
    fit(model, bps.rank())
    assert (weights_of(model) != before).any()
    state.restore()
    np.testing.assert_array_equal(weights_of(model), before)


def _without_a_session() -> None:
    """An error in training, and of a call, and no hang; the next session trains."""
    bps.init()
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    fit(model, bps.rank(), epochs=1)
    bps.shutdown()
    with pytest.raises(Exception, match=r"bps\.init\(\)"):
        fit(model, 0)
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        bps.push_pull(1.0, name="x")
    bps.init()
    # A fresh one: a step that fails on JAX leaves Keras's variables without values.
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    fit(model, bps.rank(), epochs=1)
    assert_same_on_all_ranks(model)


def _elastic() -> None:
    """A failed operation, in fit(), takes training back to the last commit, and both ends are the same."""

    def trained(fail: bool) -> tuple[np.ndarray, list[int]]:
        bps.init()
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
        state = bps.elastic.KerasState(model, epoch=0)
        begun: list[int] = []

        class Failing(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                begun.append(epoch)

            def on_batch_end(self, batch: int, logs: Any = None) -> None:
                if fail and len(begun) == 2:
                    begun.append(-1)
                    bps.push_pull(np.ones(1 + bps.rank()), name="disagreement")

        @bps.elastic.run
        def train(state: Any) -> None:
            x, y = data(bps.rank())
            callbacks = [
                callback_class("Update", UpdateEpochState, keras)(state),
                callback_class("Commit", CommitState, keras)(state, batches_per_commit=1000),
                Failing(),
            ]
            model.fit(
                x, y, batch_size=8, epochs=3, initial_epoch=state.epoch, shuffle=False, verbose=0, callbacks=callbacks
            )

        train(state)
        return weights_of(model), begun

    plain, begun = trained(fail=False)
    assert begun == [0, 1, 2]
    again, begun = trained(fail=True)
    assert begun == [0, 1, -1, 1, 2]
    np.testing.assert_array_equal(plain, again)


class _Counted:
    """A state of an epoch, and how often it was committed."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.commits = 0

    def commit(self) -> None:
        self.commits += 1


def _epochs_of_both_styles() -> None:
    """The epochs that are done, where fit() gets initial_epoch, and where it gets the number that is left, as in
    Horovod's example."""
    bps.init()
    model = model_of(keras, keras.optimizers.SGD(0.01))
    x, y = data(bps.rank())
    state: Any = _Counted(0)
    update = callback_class("Update", UpdateEpochState, keras)(state)
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(state.epoch)

    def run(**epochs: int) -> list[int]:
        seen.clear()
        model.fit(x, y, verbose=0, callbacks=[update, Seen()], **epochs)
        return list(seen)

    assert run(epochs=3, initial_epoch=state.epoch) == [1, 2, 3]
    state.epoch = 2  # as restore() has it
    assert run(epochs=4, initial_epoch=state.epoch) == [3, 4]
    state.epoch = 0
    assert run(epochs=3 - state.epoch) == [1, 2, 3]
    state.epoch = 2
    assert run(epochs=5 - state.epoch) == [3, 4, 5]


def _commits_are_counted_from_the_start() -> None:
    """A fit() that has failed between two commits leaves nothing: the ranks would commit at different batches."""
    bps.init()
    state: Any = _Counted(0)
    commit = callback_class("Commit", CommitState, keras)(state, batches_per_commit=3)
    for _ in range(2):
        commit.on_train_begin()
        commit.on_batch_end(0)
        commit.on_batch_end(1)
        assert state.commits == 0
    commit.on_batch_end(2)
    assert state.commits == 1


def _wrong_arguments() -> None:
    bps.init()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1))
    for error, message, call in (
        (ValueError, "already", lambda: bps.DistributedOptimizer(optimizer)),
        (TypeError, "must be an optimizer", lambda: bps.DistributedOptimizer("sgd")),
        (TypeError, "compression", lambda: bps.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=1)),
        (ValueError, "op is 17", lambda: bps.DistributedOptimizer(keras.optimizers.SGD(0.1), op=17)),
        (ValueError, "positive", lambda: bps.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0)),
        (ValueError, "root_rank is 7", lambda: bps.broadcast(1.0, 7)),
        (ValueError, "both op and average", lambda: bps.allreduce(1.0, average=True, op=bps.Sum)),
        (ValueError, "both op and average", lambda: bps.allreduce(1.0, average=False, op=bps.Average)),
    ):
        with pytest.raises(error, match=message):
            call()
    variable = model_of(keras, "sgd").trainable_variables[0]
    for wrong, message in (
        *(({"gradient_predivide_factor": factor}, "must be a positive number") for factor in (0, -2.0, np.inf, np.nan)),
        ({"num_groups": -1}, "num_groups is -1"),
        ({"groups": [variable]}, "lists of variables"),
        ({"groups": [[variable], [variable]]}, "twice"),
    ):
        with pytest.raises(ValueError, match=message):
            bps.DistributedOptimizer(keras.optimizers.SGD(0.1), **wrong)
    bps.DistributedOptimizer(keras.optimizers.SGD(0.1), groups=[[variable]])
    assert (bps.allreduce(1.0, average=False), bps.allreduce(1.0, average=True)) == (2, 1)


def _accumulated_gradients() -> None:
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


def _accumulation_is_loaded_again() -> None:
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


def _accumulation_with_float8() -> None:
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


def _accumulated_gradients_are_scaled() -> None:
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


def _overflow_of_one_rank() -> None:
    """Both skip the step, and none waits."""
    bps.init()
    optimizer = bps.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)))
    model = model_of(keras, optimizer)
    before = weights_of(model)
    x, y = data(bps.rank())
    overflowing = x * np.float32(np.inf) if bps.rank() == 1 else x
    scale = float(np.asarray(optimizer.initial_scale))
    model.fit(overflowing[:8], y[:8], batch_size=8, verbose=0)
    np.testing.assert_array_equal(weights_of(model), before)
    assert float(np.asarray(optimizer.dynamic_scale.numpy())) == scale / 2
    fit(model, bps.rank())
    assert (weights_of(model) != before).any()
    assert_same_on_all_ranks(model)


def _loss_scaling_of(keras: Any) -> Any:
    return (keras.optimizers if is_keras_3(keras) else keras.mixed_precision).LossScaleOptimizer


def _overflow_of_a_local_layer() -> None:
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


def _overflow_of_a_local_layer_while_a_rank_has_joined() -> None:
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


def _norm_of_all_with_local_layers_is_refused() -> None:
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


def _random_numbers_stay() -> None:
    """Each worker drops other inputs, also behind a broadcast."""
    bps.init()
    dropout = keras.layers.Dropout(0.5, seed=10 + bps.rank())
    model = keras.Sequential([keras.layers.Input((8,)), dropout, keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
    callback = callbacks_of(keras).BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.on_train_begin()
    state = bps.elastic.KerasState(model)
    state.sync()
    if keras.backend.backend() == "tensorflow":
        from byteps.tensorflow.elastic import TensorFlowKerasState

        TensorFlowKerasState(model).sync()
    drawn = [weight for weight in model.variables if weight.path.endswith("seed_generator_state")]
    assert [int(np.ravel(to_array(weight))[0]) for weight in drawn] == [10 + bps.rank()]
    assert_same_on_all_ranks(model)
    drawn[0].assign([7, 7])
    state.restore()
    assert int(np.ravel(to_array(drawn[0]))[0]) == 10 + bps.rank()


def _loss_scaling_outside_is_refused() -> None:
    bps.init()
    inner = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model = model_of(keras, _loss_scaling_of(keras)(inner))
    with pytest.raises(ValueError, match="Put it inside"):
        fit(model, bps.rank())


def _constant_loss_scaling_outside() -> None:
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


def _xla_on_tensorflow_is_refused() -> None:
    """In the words of this package, and the session goes on."""
    bps.init()
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    model.compile(optimizer=model.optimizer, loss="mse", jit_compile=True)
    with pytest.raises(Exception, match="BytePS cannot communicate inside of a function that XLA compiles"):
        fit(model, bps.rank(), epochs=1)
    assert bps.push_pull(1.0, average=False) == 2


def _mixed_precision() -> None:
    """compile() would put loss scaling around the optimizer: it is inside already."""
    bps.init()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
        assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        model = model_of(keras, optimizer)
        assert model.optimizer is optimizer
        fit(model, bps.rank())
        assert_same_on_all_ranks(model)
    finally:
        keras.config.set_dtype_policy(before)


OF_ALL = [
    _local_variables_stay,
    _as_one_process_on_the_double_batch,
    _clipping_and_averages_after_the_reduction,
    _compressed,
    _broadcast_of_a_model_that_is_not_built,
    _metrics_of_all,
    _metrics_that_are_arrays,
    _callbacks_of_the_installed_keras,
    _learning_rates,
    _momentum_correction,
    _saved_and_loaded,
    _saved_as_the_plain_optimizer,
    _copies_stay_distributed,
    _copies_of_local_layers,
    _copies_of_optimizers,
    _best_model_of_rank_0,
    _of_local_layers,
    _synchronized_batch_normalization,
    _one_rank_alone_traces_again,
    _statistics_are_averaged,
    _wrong_arguments_of_batch_normalization,
    _values,
    _values_of_pytorch,
    _broadcasts_of_different_arrays_are_refused,
    _process_set_of_one,
    _state,
    _state_before_the_first_step,
    _overflow_of_a_local_layer,
    _overflow_of_a_local_layer_while_a_rank_has_joined,
    _norm_of_all_with_local_layers_is_refused,
    _loss_scaling_outside_is_refused,
    _without_a_session,
    _elastic,
    _epochs_of_both_styles,
    _commits_are_counted_from_the_start,
    _wrong_arguments,
]
OF_KERAS_3 = [
    _batches_of_different_sizes_are_normalized_together,
    _accumulated_gradients,
    _accumulation_is_loaded_again,
    _accumulation_with_float8,
    _accumulated_gradients_are_scaled,
    _overflow_of_one_rank,
    _random_numbers_stay,
    _mixed_precision,
]
OF_TF_KERAS = [_constant_loss_scaling_outside]
OF_TENSORFLOW = [_xla_on_tensorflow_is_refused]
_ON_TENSORFLOW = ("tensorflow", "tf_keras")


def _is_keras_3(of: str) -> bool:
    """Of a backend, or the package tf_keras: whether Keras 3 runs on it. Old releases of TensorFlow bring Keras 2."""
    return of != "tf_keras" and is_keras_3(importlib.import_module("keras"))


@pytest.fixture(scope="module", params=["tensorflow", "torch", "jax", "tf_keras"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """A job of two workers and one server that has run the bodies on this backend, or in this package."""
    of = request.param
    if importlib.util.find_spec(of) is None:
        pytest.skip(f"{of} is not installed here: tools/setup --frameworks")
    keras_3 = _is_keras_3(of)
    environment = clean_environment(
        BYTEPS_OP_TIMEOUT="120",
        KERAS_BACKEND=of if keras_3 else "tensorflow",
        TESTED_KERAS=of if of == "tf_keras" else "keras",
    )
    of_package = OF_KERAS_3 if keras_3 else OF_TF_KERAS
    bodies = [*OF_ALL, *of_package, *(OF_TENSORFLOW if of in _ON_TENSORFLOW else ())]
    folder = tmp_path_factory.mktemp("job")
    return Outcomes(run_job(folder, launcher_command(2, 1), 2, bodies, (), environment, check=False))


@pytest.mark.parametrize("body", [*OF_ALL, *OF_KERAS_3, *OF_TF_KERAS, *OF_TENSORFLOW])
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    if body in OF_KERAS_3 and not _is_keras_3(request.node.callspec.params["outcomes"]):
        pytest.skip("of Keras 3 alone")
    if body in OF_TF_KERAS and _is_keras_3(request.node.callspec.params["outcomes"]):
        pytest.skip("of tf_keras alone")
    if body in OF_TENSORFLOW and request.node.callspec.params["outcomes"] not in _ON_TENSORFLOW:
        pytest.skip("of TensorFlow alone")
    outcomes.check(body)
