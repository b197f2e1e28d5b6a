"""A part of the job of test_keras_job.py: models and optimizers that are saved, loaded and copied."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path
from typing import Any

import byteps.keras as bps
import numpy as np
import pytest
from byteps.keras.flavor import is_keras_3
from byteps.keras.optimizer import is_distributed
from keras_models import assert_same_on_all_ranks, fit, keras, model_of, weights_of


def saved_and_loaded() -> None:
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


def saved_as_the_plain_optimizer() -> None:
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
        # Keras 2.13 cannot read its own files of the new format with legacy optimizers or loss scaling, BytePS or not;
        # nor can 2.14 with legacy optimizers.
        unreadable = keras.__version__.startswith("2.13.") and make not in kinds[:2]
        unreadable |= keras.__version__.startswith("2.14.") and make in (kinds[2], kinds[-1])
        for ending in ("h5",) if unreadable else ("keras", "h5"):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"model.{ending}"
                model.save(path)
                found = keras.models.load_model(path).optimizer
                assert type(found) is type(plain), (ending, found)
                found = bps.load_model(path, keras=keras).optimizer
                assert is_distributed(found) and isinstance(found, type(plain)), (ending, found)


def copies_stay_distributed() -> None:
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


def copies_of_local_layers() -> None:
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


def copies_of_optimizers() -> None:
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
