"""tf.distribute over two workers with two replicas each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np
from jobs import Outcomes

_DEVICES = ["/cpu:0", "/cpu:1"]


def _strategy() -> Any:
    return bps.distribute.MirroredStrategy(_DEVICES)


def _replicas_and_initial_values() -> None:
    # Before init(), which is before any tensor: devices cannot be set later.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with pytest.raises(ValueError, match=r"bps\.init\(\)"):
        bps.distribute.MirroredStrategy(_DEVICES)
    bps.init()
    strategy = _strategy()
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 4
    with strategy.scope():
        variable = tf.Variable([float(bps.rank()), 3.0])
        made = tf.Variable(lambda: tf.fill([2], 5.0 + bps.rank()))
    for of in (variable, made):
        assert len(of.values) == 2
    np.testing.assert_array_equal(variable, [0, 3])
    np.testing.assert_array_equal(made.values[1], [5, 5])
    with pytest.raises(ValueError, match="within this process alone"):
        bps.distribute.MirroredStrategy(_DEVICES, tf.distribute.ReductionToOneDevice())


def _number(strategy: Any) -> tf.Tensor:
    """1 to 4, of the replica among all."""
    local = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.cast(local + 1, tf.float32) + 2.0 * bps.rank()


def _reductions() -> None:
    bps.init()
    strategy = _strategy()

    @tf.function
    def step() -> tuple[Any, Any, Any]:
        def of_replica() -> tuple[Any, Any]:
            number = _number(strategy)
            return number, tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, number)

        numbers, sums = strategy.run(of_replica)
        return (
            strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None),
            strategy.reduce(tf.distribute.ReduceOp.MEAN, numbers, axis=None),
            strategy.experimental_local_results(sums),
        )

    for _ in range(2):
        total, mean, sums = step()
        assert (float(total), float(mean)) == (10, 2.5)
        assert [float(value) for value in sums] == [10, 10]


def _gradients_of_all_replicas() -> None:
    bps.init()
    strategy = _strategy()
    with strategy.scope():
        weight = tf.Variable([1.0, 1.0])
        table = tf.Variable(tf.zeros([3, 1]))
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build([weight, table])

    @tf.function
    def step() -> None:
        def of_replica() -> None:
            with tf.GradientTape() as tape:
                row = tf.distribute.get_replica_context().replica_id_in_sync_group + bps.rank()
                loss = tf.reduce_sum(weight) * _number(strategy) + tf.reduce_sum(tf.gather(table, [row]))
            optimizer.apply_gradients(zip(tape.gradient(loss, [weight, table]), [weight, table]))

        strategy.run(of_replica)

    step()
    for value in weight.values:
        np.testing.assert_allclose(value, [0, 0], atol=1e-6)
    np.testing.assert_allclose(table.values[1], [[-0.1], [-0.2], [-0.1]], rtol=1e-6)


def _fit() -> None:
    """Four replicas as one process with the whole batch."""
    bps.init()
    generator = np.random.default_rng(3)
    x = generator.normal(size=(64, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def model() -> Any:
        built = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        built.compile(tf.keras.optimizers.SGD(0.05), "mse", jit_compile=False)
        return built

    def batches(part: slice, size: int) -> Any:
        return tf.data.Dataset.from_tensor_slices((x[part], y[part])).batch(size)

    tf.keras.utils.set_random_seed(4)
    alone = model()
    alone.fit(batches(slice(None), 16), epochs=3, verbose=0)
    strategy = _strategy()
    tf.keras.utils.set_random_seed(4 + bps.rank())
    with strategy.scope():
        shared = model()
    shared.fit(batches(slice(bps.rank(), None, 2), 8), epochs=3, verbose=0)
    for own, expected in zip(shared.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)


BODIES = [_replicas_and_initial_values, _reductions, _gradients_of_all_replicas, _fit]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
