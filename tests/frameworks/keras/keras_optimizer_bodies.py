"""A part of the job of test_keras_job.py: DistributedOptimizer in training."""

from __future__ import annotations

import gc
import tempfile
import weakref
from pathlib import Path
from typing import Any

import byteps.keras as bps
import numpy as np
import pytest
from byteps.keras.arrays import to_array
from byteps.keras.callbacks import callbacks_of
from byteps.keras.flavor import backend_of, is_keras_3
from byteps.keras.optimizer import is_distributed
from keras_models import assert_same_on_all_ranks, fit, keras, model_of, weights_of


def local_variables_stay() -> None:
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

    later = model.weights[1]
    later.assign(np.full(later.shape, float(bps.rank())))
    callback = callbacks_of(keras).BroadcastGlobalVariablesCallback(0, local_variables=[local])
    callback.register_local_var(later)
    callback.set_model(model)
    callback.on_train_begin()
    np.testing.assert_array_equal(model.get_weights()[0], own)
    np.testing.assert_array_equal(model.get_weights()[1], np.full(later.shape, float(bps.rank())))

    class Variable:
        pass

    gone, registered = Variable(), Variable()
    lives = [weakref.ref(gone), weakref.ref(registered)]
    callback = callbacks_of(keras).BroadcastGlobalVariablesCallback(0, local_variables=[gone])
    callback.register_local_var(registered)
    del gone, registered
    gc.collect()
    # Else another variable may get its id, and would be taken for a local one.
    assert all(each() is not None for each in lives) and callback is not None


def as_one_process_on_the_double_batch() -> None:
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


def _multiple(by_map: bool, **options: Any) -> Any:
    """A MultiOptimizer: SGD for the first layer's kernel and bias, Adam for the others."""
    first, others = keras.optimizers.SGD(0.01, momentum=0.9, **options), keras.optimizers.Adam(0.01)

    def choose(variable: Any) -> Any:
        return first if variable.shape[-1] == 16 else others

    chosen = keras.optimizers.OptimizerMap(others, {".*dense/.*": first}) if by_map else choose
    return keras.optimizers.MultiOptimizer(chosen)


def an_optimizer_for_each_variable() -> None:
    bps.init()
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return
    callbacks = callbacks_of(keras)
    scaling = keras.optimizers.LossScaleOptimizer
    for make in (
        lambda: _multiple(True),
        lambda: _multiple(False),
        lambda: _multiple(True, gradient_accumulation_steps=2),
        lambda: scaling(_multiple(True), initial_scale=8.0),
    ):
        keras.backend.clear_session()  # layers are numbered again
        alone = model_of(keras, make())
        fit(alone, None)
        keras.backend.clear_session()
        model = model_of(keras, bps.DistributedOptimizer(make()), seed=1 + bps.rank())
        fit(model, bps.rank(), callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)])
        assert_same_on_all_ranks(model)
        np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)
        schedule = callbacks.LearningRateScheduleCallback(0.5)
        with pytest.raises(ValueError, match="MultiOptimizer, which has no learning rate of its own"):
            fit(model, bps.rank(), callbacks=[schedule])
    copied = type(model.optimizer).from_config(model.optimizer.get_config())
    assert isinstance(copied, scaling) and is_distributed(copied)


def an_optimizer_for_each_variable_is_loaded() -> None:
    bps.init()
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return
    keras.backend.clear_session()
    model = model_of(keras, bps.DistributedOptimizer(_multiple(True)))
    fit(model, bps.rank(), epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        plain, loaded = keras.models.load_model(path), bps.load_model(path, keras=keras)
    assert not is_distributed(plain.optimizer) and is_distributed(loaded.optimizer)
    loaded.compile(optimizer=loaded.optimizer, loss="mse", metrics=["mae"], jit_compile=False)
    for each in (model, loaded):
        fit(each, bps.rank(), epochs=1)
        assert_same_on_all_ranks(each)
    np.testing.assert_allclose(weights_of(loaded), weights_of(model), rtol=1e-6)


def wrong_optimizers_for_each_variable() -> None:
    bps.init()
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return
    multiple, sgd = keras.optimizers.MultiOptimizer, keras.optimizers.SGD
    with pytest.raises(ValueError, match="give its optimizers gradient_accumulation_steps"):
        bps.DistributedOptimizer(_multiple(True), backward_passes_per_step=2)
    inside = bps.DistributedOptimizer(sgd(0.1))
    with pytest.raises(ValueError, match="already"):
        bps.DistributedOptimizer(multiple(keras.optimizers.OptimizerMap(inside)))
    for around in (lambda made: made, keras.optimizers.LossScaleOptimizer):
        optimizer = bps.DistributedOptimizer(around(multiple(lambda variable: inside)))
        with pytest.raises(ValueError, match="already"):
            optimizer.build(model_of(keras, "sgd").trainable_variables)
        model = model_of(keras, "sgd")
        clipping = sgd(0.1, global_clipnorm=1.0)
        optimizer = bps.DistributedOptimizer(around(multiple(lambda variable, clipping=clipping: clipping)))
        optimizer.register_local_var(model.trainable_variables[0])
        with pytest.raises(ValueError, match="local variables use clipnorm or clipvalue"):
            optimizer.build(model.trainable_variables)


def clipping_and_averages_after_the_reduction() -> None:
    bps.init()
    options = {"global_clipnorm": 0.5, "use_ema": True, "ema_momentum": 0.9, "weight_decay": 0.01}
    alone = model_of(keras, keras.optimizers.Adam(0.01, **options))
    fit(alone, None)
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.Adam(0.01, **options)))
    fit(model, bps.rank())
    assert_same_on_all_ranks(model)
    np.testing.assert_allclose(weights_of(model), weights_of(alone), rtol=2e-4, atol=2e-5)


def compressed() -> None:
    bps.init()
    for compression in (bps.Compression.fp16, bps.Compression.bf16):
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression))
        fit(model, bps.rank())
        assert_same_on_all_ranks(model)
        alone = model_of(keras, keras.optimizers.SGD(0.01))
        fit(alone, None)
        assert np.abs(weights_of(model) - weights_of(alone)).max() < 0.02
        assert (weights_of(model) != weights_of(alone)).any()


def of_local_layers() -> None:
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


def _trained_on(number: float, optimizer: Any) -> float:
    """The weight, 1 at first, behind one step whose gradient is the number."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    # The loss is the output: the gradient is the input.
    model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
    model.fit(np.full([1, 1], number, "float32"), np.zeros([1, 1]), verbose=0)
    return float(np.ravel(model.get_weights()[0])[0])


def each_reduction() -> None:
    bps.init()
    of_ops = ((bps.Sum, 8), (bps.Average, 4), (bps.Min, 2), (bps.Max, 6), (bps.Product, 12))
    for op, reduced in of_ops:
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op)
        assert _trained_on(2 + 4 * bps.rank(), optimizer) == 1 - reduced, op


def divided_before_the_sum() -> None:
    """The sum of these gradients is no float32, their average is one."""
    bps.init()
    large, mean, rate = (1.5, 1.25)[bps.rank()] * 2.0**127, 1.375 * 2.0**127, 2.0**-126
    for options, expected in (
        ({}, -np.inf),
        ({"gradient_predivide_factor": 0.5}, -np.inf),
        ({"gradient_predivide_factor": 2.0}, 1 - rate * mean),
        ({"gradient_predivide_factor": 4}, 1 - rate * mean),
    ):
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(rate), **options)
        assert _trained_on(large, optimizer) == expected, options


def embeddings() -> None:
    """Of rows that both ranks have, that one has, and that none has; where their gradients are IndexedSlices, these are
    sent so unless sparse_as_dense is given."""
    bps.init()
    rank = bps.rank()
    applied: list[bool] = []
    on_tensorflow = backend_of(keras) == "tensorflow"

    class Noted(keras.optimizers.SGD):
        def update_step(self, gradient: Any, *arguments: Any) -> None:
            applied.append(hasattr(gradient, "dense_shape"))
            super().update_step(gradient, *arguments)

    def trained(optimizer: Any, local: bool = False) -> list[float]:
        layer = keras.layers.Embedding(5, 1, embeddings_initializer="ones")
        model = keras.Sequential([keras.layers.Input((4,), dtype="int32"), layer])
        if local:
            optimizer.register_local_var(layer.trainable_variables[0])
        # The loss is the mean output: a row's gradient is a quarter of how often it is there.
        model.compile(optimizer=optimizer, loss=lambda y, prediction: prediction, jit_compile=False)
        rows = [[1, 3, 3, 3], [0, 1, 1, 2]][rank]
        model.fit(np.array([rows], "int32"), np.zeros([1, 4, 1]), batch_size=1, verbose=0)
        return [float(number) for number in np.ravel(model.get_weights()[0])]

    of_both = [1 - 1, 1 - 3, 1 - 1, 1 - 3, 1]
    for options, rate, sparse in (
        ({}, 8, True),
        ({"sparse_as_dense": True}, 8, False),
        ({"op": bps.Sum}, 4, True),
        ({"op": bps.Sum, "sparse_as_dense": True}, 4, False),
        ({"gradient_predivide_factor": 2.0}, 8, True),
        ({"compression": bps.Compression.fp16}, 8, True),
    ):
        applied.clear()
        assert trained(bps.DistributedOptimizer(Noted(float(rate)), **options)) == of_both, options
        assert set(applied) == {on_tensorflow and sparse}, options
    own = [[1, 1 - 1, 1, 1 - 3, 1], [1 - 1, 1 - 2, 1 - 1, 1, 1]][rank]
    assert trained(bps.DistributedOptimizer(keras.optimizers.SGD(8.0)), local=True) == own
    scaling = (keras.optimizers if is_keras_3(keras) else keras.mixed_precision).LossScaleOptimizer
    assert trained(bps.DistributedOptimizer(scaling(keras.optimizers.SGD(8.0), initial_scale=8.0))) == of_both
    if not is_keras_3(keras):
        assert trained(bps.DistributedOptimizer(keras.optimizers.legacy.SGD(8.0))) == of_both


def process_set_of_one() -> None:
    """Its gradients are its own: as a plain optimizer on this rank's data."""
    bps.init()
    mine = [bps.add_process_set([rank]) for rank in range(2)][bps.rank()]
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01), process_set=mine))
    fit(model, bps.rank(), epochs=1)
    plain = model_of(keras, keras.optimizers.SGD(0.01))
    fit(plain, bps.rank(), epochs=1)
    np.testing.assert_array_equal(weights_of(model), weights_of(plain))


def a_rank_outside_of_the_process_set() -> None:
    """All ranks give the same set. Rank 0 is not in it, and trains by itself."""
    bps.init()
    last = bps.add_process_set([1])
    for options in ({}, {"op": bps.Sum}):
        model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01), process_set=last, **options))
        fit(model, bps.rank(), epochs=1)
        plain = model_of(keras, keras.optimizers.SGD(0.01))
        fit(plain, bps.rank(), epochs=1)
        np.testing.assert_array_equal(weights_of(model), weights_of(plain))


def random_numbers_stay() -> None:
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


def xla_on_tensorflow_is_refused() -> None:
    """In the words of this package, and the session goes on."""
    bps.init()
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    model.compile(optimizer=model.optimizer, loss="mse", jit_compile=True)
    with pytest.raises(Exception, match="BytePS cannot communicate inside of a function that XLA compiles"):
        fit(model, bps.rank(), epochs=1)
    assert bps.push_pull(1.0, average=False) == 2


def global_variables_are_of_graphs() -> None:
    bps.init()
    with pytest.raises(RuntimeError, match="for graphs of TensorFlow 1"):
        bps.broadcast_global_variables(0)


def without_a_session() -> None:
    """An error in training, and of a call, and no hang; the next session trains."""
    bps.init()
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    fit(model, bps.rank(), epochs=1)
    bps.shutdown()
    with pytest.raises(Exception, match=r"bps\.init\(\)"):
        fit(model, 0)
        weights_of(model)  # JAX raises when a result is read, which fit() of Keras 3.15 leaves to others
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        bps.push_pull(1.0, name="x")
    bps.init()
    # A fresh one: a step that fails on JAX leaves Keras's variables without values.
    model = model_of(keras, bps.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    fit(model, bps.rank(), epochs=1)
    assert_same_on_all_ranks(model)


def wrong_arguments() -> None:
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
