"""tf_keras in graphs of TensorFlow 1, without eager execution, over two workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

framework("tensorflow")
framework("tf_keras")

import numpy as np
from byteps.objects import allgather_object

RunWorkers = Callable[..., Any]

BATCHES = 4


def _model(optimizer: Any, seed: int) -> Any:
    """Built; its parts begin with values of the seed's."""
    import tensorflow as tf
    import tf_keras

    tf.compat.v1.set_random_seed(seed)
    tf_keras.utils.set_random_seed(seed)
    model = tf_keras.Sequential(
        [
            tf_keras.layers.Input((8,)),
            tf_keras.layers.Dense(4),
            tf_keras.layers.BatchNormalization(),
            tf_keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


def _fit(model: Any, rank: int, callbacks: list[Any], epochs: int = 2) -> Any:
    generator = np.random.default_rng(rank)
    x = generator.normal(size=(8 * BATCHES, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    return model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


def _optimizer(kind: str) -> Any:
    import tf_keras

    if kind == "SGD":
        return tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9)
    return getattr(tf_keras.optimizers.legacy, kind)(0.01)


def _callbacks_in_a_graph(kind: str) -> None:
    import byteps.keras as bps
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    bps.init()
    rank = bps.rank()
    model = _model(bps.DistributedOptimizer(_optimizer(kind)), seed=rank)

    started = []

    class Started(bps.callbacks.BroadcastGlobalVariablesCallback):
        def on_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not started:
                started.append([np.array(value) for value in self.model.get_weights()])

    own = [np.array(value) for value in model.get_weights()]
    history = _fit(
        model, rank, [Started(1), bps.callbacks.MetricAverageCallback(), bps.callbacks.AverageStatisticsCallback()]
    )
    others = allgather_object(own)
    for value, of_root in zip(started[0], others[1]):
        np.testing.assert_array_equal(value, of_root)
    assert any((value != of_root).any() for value, of_root in zip(others[0], others[1]))
    # Weights, the averaged statistics included, and metrics.
    weights = allgather_object(model.get_weights())
    for first, second in zip(*weights):
        np.testing.assert_array_equal(first, second)
    assert any((end != begin).any() for end, begin in zip(weights[rank], started[0]))
    histories = allgather_object({name: list(map(float, values)) for name, values in history.history.items()})
    assert histories[0] == histories[1]


def _state_in_a_graph() -> None:
    import byteps.keras as bps
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    bps.init()
    rank = bps.rank()
    model = _model(bps.DistributedOptimizer(_optimizer("Adam")), seed=rank)
    state = bps.elastic.KerasState(model, epoch=0)
    own = model.get_weights()
    _fit(model, rank, [], epochs=1)
    state.restore()
    for value, saved in zip(model.get_weights(), own):
        np.testing.assert_array_equal(value, saved)
    state.sync(1)
    of_root = allgather_object(own)[1]
    for value, expected in zip(model.get_weights(), of_root):
        np.testing.assert_array_equal(value, expected)


def _global_variables_in_a_graph() -> None:
    """Variables that are no model's, too, in Keras's session: with the package tf_keras, whatever tf.keras is."""
    import byteps.keras as bps
    import tensorflow as tf
    import tf_keras

    tf.compat.v1.disable_eager_execution()
    bps.init()
    rank = bps.rank()
    model = _model(bps.DistributedOptimizer(_optimizer("SGD")), seed=rank)
    _fit(model, rank, [], epochs=1)
    own = allgather_object(model.get_weights())
    assert any((value != of_root).any() for value, of_root in zip(own[0], own[1]))
    alone = tf_keras.backend.variable(10.0 + rank)
    bps.broadcast_global_variables(1)
    for value, of_root in zip(model.get_weights(), own[1]):
        np.testing.assert_array_equal(value, of_root)
    assert tf_keras.backend.get_value(alone) == 11


def _learning_rates_in_a_graph() -> None:
    import byteps.keras as bps
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    bps.init()
    import tf_keras

    class Rates(tf_keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.rates: list[float] = []
            self.momenta: list[float] = []

        def on_batch_begin(self, batch: int, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            self.rates.append(float(tf_keras.backend.get_value(optimizer.learning_rate)))
            slots = [optimizer.get_slot(variable, "momentum") for variable in self.model.trainable_variables]
            self.momenta.append(float(sum(np.abs(value).sum() for value in tf_keras.backend.batch_get_value(slots))))

    class Kept(Rates):
        """Before the callbacks that set rates."""

    optimizer = bps.DistributedOptimizer(_optimizer("SGD"))
    model = _model(optimizer, seed=1)
    before, behind = Kept(), Rates()
    warmup = bps.callbacks.LearningRateWarmupCallback(warmup_epochs=2)
    history = _fit(model, bps.rank(), [before, warmup, behind], epochs=3)
    expected = [0.1 * ((batch + 1) / BATCHES / 2 + 1) / 2 for batch in range(2 * BATCHES)] + [0.1] * BATCHES
    np.testing.assert_allclose(behind.rates, expected, rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], expected[BATCHES - 1 :: BATCHES], rtol=1e-5)
    # Momentum is corrected by the new rate over the old one.
    for batch in range(1, 2 * BATCHES):
        ratio = expected[batch] / expected[batch - 1]
        assert behind.momenta[batch] == pytest.approx(before.momenta[batch] * ratio, rel=1e-4)

    schedule = bps.callbacks.LearningRateScheduleCallback(lambda epoch: 0.5**epoch, initial_lr=0.1)
    rates = Rates()
    _fit(model, bps.rank(), [schedule, rates], epochs=2)
    np.testing.assert_allclose(rates.rates, [0.1] * BATCHES + [0.05] * BATCHES, rtol=1e-6)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_callbacks_in_a_graph(run_workers: RunWorkers, kind: str) -> None:
    run_workers(_callbacks_in_a_graph, kind, BYTEPS_OP_TIMEOUT="60")


def test_elastic_state_in_a_graph(run_workers: RunWorkers) -> None:
    run_workers(_state_in_a_graph, BYTEPS_OP_TIMEOUT="60")


@pytest.mark.parametrize("legacy", ["0", "1"])
def test_broadcast_of_global_variables_in_a_graph(run_workers: RunWorkers, legacy: str) -> None:
    """Where tf.keras is Keras 3, and where it is tf_keras."""
    run_workers(_global_variables_in_a_graph, BYTEPS_OP_TIMEOUT="60", TF_USE_LEGACY_KERAS=legacy)


def test_learning_rates_in_a_graph(run_workers: RunWorkers) -> None:
    run_workers(_learning_rates_in_a_graph, BYTEPS_OP_TIMEOUT="60")
