"""backward_passes_per_step of optimizers that do not add up gradients themselves: of TensorFlow 1 and tf_keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from jobs import Outcomes


def _tf_keras() -> Any:
    return pytest.importorskip("tf_keras")


def _optimizers_of_tf_keras() -> None:
    """Both kinds of optimizers, in eager execution and in functions."""
    keras = _tf_keras()
    bps.init()
    for kind in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for average in (False, True):
            for in_graph in (False, True):
                _three_passes(kind(0.5), average, in_graph)


def _three_passes(optimizer: Any, average: bool, in_graph: bool) -> None:
    """Nothing moves before the last pass of a step, which applies the sum or the mean of the passes, of all workers."""
    weight = tf.Variable([1.0, 2.0])
    optimizer = bps.DistributedOptimizer(optimizer, backward_passes_per_step=3, average_aggregated_gradients=average)

    def step(factor: tf.Tensor) -> None:
        optimizer.apply_gradients([(tf.ones([2]) * factor, weight)])

    run = tf.function(step) if in_graph else step
    moved = 0.0
    for number in range(6):
        run(tf.constant((1.0 + bps.rank()) * (1 + number)))
        if number % 3 == 2:
            # The mean of the workers' factors is 1.5; those of the passes are 1 + 2 + 3 and 4 + 5 + 6.
            moved += 0.5 * 1.5 * (6.0 if number == 2 else 15.0) / (3 if average else 1)
        np.testing.assert_allclose(weight.numpy(), [1.0 - moved, 2.0 - moved], rtol=1e-6)
        assert int(optimizer.iterations) == number + 1


def _fit_of_tf_keras() -> None:
    """As one process with the double batch and the same passes as one step."""
    keras = _tf_keras()
    bps.init()
    x = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def model(optimizer: Any) -> Any:
        made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
        made.compile(optimizer, "mse", jit_compile=False)
        return made

    alone = model(keras.optimizers.SGD(0.05, momentum=0.9))
    alone.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    mine = [index for index in range(32) if index // 4 % 2 == bps.rank()]
    both = model(
        bps.DistributedOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), backward_passes_per_step=2, average_aggregated_gradients=True
        )
    )
    both.fit(x[mine], y[mine], batch_size=4, epochs=2, shuffle=False, verbose=0)
    for own, expected in zip(both.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def _local_layers_and_rows() -> None:
    keras = _tf_keras()
    bps.init()
    shared, local, table = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(tf.zeros([2, 1]))
    rows = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1]), tf.constant([2, 1]))
    optimizer = bps.DistributedOptimizer(
        keras.optimizers.SGD(1.0), op=bps.Sum, backward_passes_per_step=2, sparse_as_dense=True
    )
    optimizer.register_local_var(local)
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant(1.0 + bps.rank()), shared), (tf.constant(2.0), local), (rows, table)])
    assert float(shared) == -6.0 and float(local) == -2.0
    np.testing.assert_array_equal(table.numpy(), [[0], [-4]])
    plain = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="sparse_as_dense"):
        plain.apply_gradients([(rows, table)])
    other = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    other.apply_gradients([(tf.constant(1.0), shared)])
    with pytest.raises(ValueError, match="same variables"):
        other.apply_gradients([(tf.ones([2, 1]), table)])


def _overflow_in_one_pass() -> None:
    """The step is left out on both workers, and the scale is halved on both."""
    keras = _tf_keras()
    bps.init()
    weight = tf.Variable(1.0)
    scaling = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    optimizer = bps.DistributedOptimizer(scaling, op=bps.Sum, backward_passes_per_step=2)
    given = [1.0, float("inf") if bps.rank() == 1 else 1.0, 1.0, 2.0]
    for number, gradient in enumerate(given):
        optimizer.apply_gradients([(tf.constant(gradient), weight)])
        assert float(optimizer.loss_scale) == (8.0 if number == 0 else 4.0)
    assert float(weight) == 1.0 - 2 * 3.0


def _optimizer_of_tensorflow_1() -> None:
    bps.init()
    mine = float(bps.rank() + 1)
    for average in (False, True):
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable("weight", initializer=[1.0, 2.0])
            factor = tf.compat.v1.placeholder(tf.float32)
            steps = tf.compat.v1.train.get_or_create_global_step()
            optimizer = bps.DistributedOptimizer(
                tf.compat.v1.train.MomentumOptimizer(0.5, 0.0),
                backward_passes_per_step=2,
                average_aggregated_gradients=average,
            )
            train = optimizer.minimize(tf.reduce_sum(weight) * factor, global_step=steps)
            with tf.compat.v1.train.MonitoredTrainingSession() as session:
                moved = 0.0
                for number in range(4):
                    session.run(train, {factor: mine * (1 + number)})
                    if number % 2:
                        moved += 0.5 * 1.5 * (3.0 if number == 1 else 7.0) / (2 if average else 1)
                    np.testing.assert_allclose(session.run(weight), [1.0 - moved, 2.0 - moved], rtol=1e-6)
                    assert session.run(steps) == (number + 1) // 2
    # In eager execution.
    weight = tf.Variable([1.0, 2.0])
    optimizer = bps.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(0.5), op=bps.Sum, backward_passes_per_step=2
    )
    for expected in (1.0, 1.0 - 0.5 * 6):
        optimizer.minimize(lambda: tf.reduce_sum(weight) * mine)
        np.testing.assert_allclose(weight.numpy(), [expected, expected + 1])
    for passes in (0, 1.5):
        with pytest.raises(ValueError, match="positive integer"):
            bps.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(), backward_passes_per_step=passes)


BODIES = [
    _optimizers_of_tf_keras,
    _fit_of_tf_keras,
    _local_layers_and_rows,
    _overflow_in_one_pass,
    _optimizer_of_tensorflow_1,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
