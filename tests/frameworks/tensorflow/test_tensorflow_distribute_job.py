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
    context = tf.distribute.get_replica_context()
    assert len(context.devices) == 1
    return tf.cast(context.replica_id_in_sync_group + 1, tf.float32)


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


def _plain_values() -> None:
    """Numbers, arrays and tensors of a replica that are no values of a strategy."""
    bps.init()
    rank = bps.rank()
    both = _strategy()
    one = bps.distribute.MirroredStrategy(_DEVICES[:1])

    def reduced(strategy: Any, op: str, value: Any) -> np.ndarray:
        found = strategy.reduce(op, strategy.run(lambda: value), axis=None)
        return np.asarray(found)

    for value in (float(rank), rank, np.float32(rank), np.arange(2) + rank, tf.constant(float(rank))):
        base = np.asarray(value) - rank
        for strategy in (one, both):
            np.testing.assert_array_equal(reduced(strategy, "MEAN", value), base + 0.5)
        np.testing.assert_array_equal(reduced(one, "SUM", value), 2 * base + 1)
        # The replicas of a process have the same object, of which TensorFlow makes no sum.
        with pytest.raises(ValueError, match="cannot be reduced with the given reduce op"):
            reduced(both, "SUM", value)

    def number() -> float:
        return float(tf.distribute.get_replica_context().replica_id_in_sync_group + 1)

    for op, of_one, of_both in (("SUM", 3, 10), ("MEAN", 1.5, 2.5)):
        assert float(one.reduce(op, one.run(number), axis=None)) == of_one
        assert float(both.reduce(op, both.run(number), axis=None)) == of_both
    assert both.reduce("MEAN", [None, "text"], axis=None) == [None, "text"]
    step = 1.0 + rank
    for strategy in (one, both):
        with strategy.scope():
            mean = tf.Variable(tf.zeros([], tf.float64), aggregation=tf.VariableAggregation.MEAN)
        strategy.run(lambda mean=mean: mean.assign_add(step))
        assert float(mean.values[0]) == 1.5
    with one.scope():
        count = tf.Variable(tf.zeros([], tf.int64), aggregation=tf.VariableAggregation.SUM)
    one.run(lambda: count.assign_add(1 + rank))
    assert int(count.values[0]) == 3


def _gathered() -> None:
    bps.init()
    strategies = _strategy(), bps.distribute.MirroredStrategy(_DEVICES[:1])
    for strategy in strategies:
        count = strategy.num_replicas_in_sync

        def of_replica() -> tf.Tensor:
            # Replica 0 has one row, replica 1 two, ...
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.fill([number + 1, 2], number)

        wanted = np.concatenate([np.full([number + 1, 2], number) for number in range(count)])
        for axis in (0, 1, -1):

            def gathered(axis: int = axis, of_replica: Any = of_replica, strategy: Any = strategy) -> tf.Tensor:
                own = of_replica if axis == 0 else lambda: tf.transpose(of_replica())
                return strategy.gather(strategy.run(own), axis=axis)

            for run in (gathered, tf.function(gathered)):
                np.testing.assert_array_equal(run(), wanted if axis == 0 else wanted.T)

        def weighted(of_replica: Any = of_replica) -> tuple[tf.Tensor, tf.Tensor]:
            own = tf.cast(of_replica(), tf.float32)
            with tf.GradientTape() as tape:
                tape.watch(own)
                rows = tf.distribute.get_replica_context().all_gather(own, axis=0)
                loss = tf.reduce_sum(rows * tf.reshape(tf.range(tf.cast(tf.size(rows), tf.float32)), tf.shape(rows)))
            return rows, tape.gradient(loss, own)

        # Every replica's loss has the same gradient, and theirs are added up.
        weights = count * np.arange(wanted.size).reshape(wanted.shape)
        rows, gradients = tf.function(lambda strategy=strategy, weighted=weighted: strategy.run(weighted))()
        local = len(strategy.extended.worker_devices)
        of_rank = range(local * bps.rank(), local * bps.rank() + local)
        results = map(strategy.experimental_local_results, (rows, gradients))
        for number, found, gradient in zip(of_rank, *results):
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(gradient, weights[wanted[:, 0] == number])


def _inputs_know_all_workers() -> None:
    bps.init()
    strategy = _strategy()
    contexts = []

    def dataset(context: Any) -> Any:
        contexts.append(context)
        return tf.data.Dataset.range(8).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)

    batches = iter(strategy.distribute_datasets_from_function(dataset))
    found = strategy.run(lambda batch: batch, args=(next(batches),))
    np.testing.assert_array_equal(strategy.gather(found, axis=0), [0, 2, 4, 6, 1, 3, 5, 7])
    assert [(c.num_input_pipelines, c.input_pipeline_id, c.num_replicas_in_sync) for c in contexts] == [
        (2, bps.rank(), 4)
    ]
    assert contexts[0].get_per_replica_batch_size(8) == 2

    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([context.replica_id_in_sync_group, context.num_replicas_in_sync])
    )
    np.testing.assert_array_equal(strategy.gather(values, axis=0), [0, 4, 1, 4, 2, 4, 3, 4])


def _reduced_twice_is_refused() -> None:
    bps.init()
    strategy = _strategy()
    made_outside = bps.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    tape_outside = bps.DistributedGradientTape(tf.GradientTape())
    with strategy.scope():
        variable = tf.Variable([1.0])
        for make in (
            lambda: bps.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)),
            lambda: bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1)),
            lambda: bps.DistributedGradientTape(tf.GradientTape()),
        ):
            with pytest.raises(ValueError, match="plain optimizer and tape"):
                make()

    def apply() -> None:
        made_outside.apply_gradients([(tf.ones([1]), variable)])

    def differentiate() -> None:
        with tape_outside:
            loss = variable * 2
        tape_outside.gradient(loss, variable)

    for step in (apply, differentiate):
        with pytest.raises(ValueError, match="plain optimizer and tape"):
            strategy.run(tf.function(step))
    # Under another strategy they reduce as anywhere.
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        bps.DistributedGradientTape(tf.GradientTape())


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
                row = tf.distribute.get_replica_context().replica_id_in_sync_group - bps.rank()
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
        metrics = ["mae", tf.keras.metrics.RootMeanSquaredError(name="rmse")]
        built.compile(tf.keras.optimizers.SGD(0.05), "mse", metrics=metrics, jit_compile=False)
        return built

    def batches(part: slice, size: int) -> Any:
        return tf.data.Dataset.from_tensor_slices((x[part], y[part])).batch(size)

    tf.keras.utils.set_random_seed(4)
    alone = model()
    expected_history = alone.fit(batches(slice(None), 16), epochs=3, verbose=0).history
    strategy = _strategy()
    tf.keras.utils.set_random_seed(4 + bps.rank())
    with strategy.scope():
        shared = model()
    history = shared.fit(batches(slice(bps.rank(), None, 2), 8), epochs=3, verbose=0).history
    for own, expected in zip(shared.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)
    # What is counted is what all workers have seen, in fit() and in evaluate().
    assert sorted(history) == sorted(expected_history) == ["loss", "mae", "rmse"]
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
    seen = shared.evaluate(batches(slice(bps.rank(), None, 2), 8), verbose=0, return_dict=True)
    for name, value in alone.evaluate(batches(slice(None), 16), verbose=0, return_dict=True).items():
        np.testing.assert_allclose(seen[name], value, rtol=1e-4, err_msg=name)


def _overflow_of_one_replica() -> None:
    """With loss scaling all replicas of all workers skip the step, and none waits."""
    bps.init()
    generator = np.random.default_rng(bps.rank())
    x = generator.normal(size=(16, 4)).astype("float32")
    of_third, of_last = x.copy(), x.copy()
    if bps.rank() == 1:
        of_third[0] = of_last[-1] = np.inf
    strategy = _strategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.05))
        model.compile(optimizer, "mse", jit_compile=False)
    before = model.get_weights()
    for given, changes in ((of_last, False), (of_third, False), (x, True)):
        model.fit(tf.data.Dataset.from_tensor_slices((given, x[:, :1])).batch(16), epochs=2, verbose=0)
        after = model.get_weights()
        assert (after[0] != before[0]).any() == changes
        for own, of_root in zip(after, bps.broadcast_object(after, 0)):
            np.testing.assert_array_equal(own, of_root)


def _loss_scaling_while_a_rank_has_joined() -> None:
    """Rank 1 takes two steps more; in the first of them its gradients overflow."""
    bps.init()
    x = np.ones((16, 4), "float32")
    strategy = _strategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.05))
        model.compile(optimizer, "mse", jit_compile=False)
    for given, changes in ((x, True), (x * np.inf, False), (x, True))[: 1 + 2 * bps.rank()]:
        before = model.get_weights()
        model.fit(tf.data.Dataset.from_tensor_slices((given, x[:, :1])).batch(16), verbose=0)
        assert (model.get_weights()[0] != before[0]).any() == changes
    assert bps.join() == 1


def _statistics_of_batch_normalization() -> None:
    """Each worker's replicas keep their own, until a callback averages them."""
    from byteps.tensorflow.keras.callbacks import AverageStatisticsCallback

    bps.init()
    x = np.random.default_rng(bps.rank()).normal(3 * bps.rank(), size=(32, 4)).astype("float32")

    def statistics(*callbacks: Any) -> list[np.ndarray]:
        strategy = _strategy()
        with strategy.scope():
            layers = [tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)]
            model = tf.keras.Sequential([tf.keras.layers.Input((4,)), *layers])
            model.compile(tf.keras.optimizers.SGD(0.05), "mse", jit_compile=False)
        dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
        model.fit(dataset, epochs=1, verbose=0, callbacks=list(callbacks))
        # Of the first replica. To read the whole of a weight of Keras 2 is to average it over all replicas.
        own = [getattr(weight, "values", [weight])[0] for weight in model.non_trainable_weights]
        return [np.asarray(each.numpy()) for each in own]

    def of_both(own: list[np.ndarray]) -> list[list[np.ndarray]]:
        return [bps.broadcast_object(own, of) for of in range(2)]

    for first, second in zip(*of_both(statistics())):
        assert np.abs(first - second).max() > 0.01
    for first, second in zip(*of_both(statistics(AverageStatisticsCallback()))):
        np.testing.assert_array_equal(first, second)


BODIES = [
    _replicas_and_initial_values,
    _reductions,
    _plain_values,
    _gathered,
    _inputs_know_all_workers,
    _reduced_twice_is_refused,
    _gradients_of_all_replicas,
    _fit,
    _overflow_of_one_replica,
    _loss_scaling_while_a_rank_has_joined,
    _statistics_of_batch_normalization,
]


@pytest.mark.parametrize("body", BODIES)
def test_in_one_job(body: Callable[[], None], outcomes: Outcomes) -> None:
    outcomes.check(body)
