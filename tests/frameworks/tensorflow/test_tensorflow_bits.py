"""The bits of training with byteps.tensorflow: the same on all ranks, and in all runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
import numpy as np

RunWorkers = Callable[..., Any]


def _digests() -> list[str]:
    """Of the weights behind a few steps, with dense, sparse and compressed gradients, of a gather, and of replicas."""
    # Before init(), which is before any tensor: devices cannot be set later.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    bps.init()
    rank = bps.rank()
    # The sums of one process must not depend on its threads, either.
    tf.config.experimental.enable_op_determinism()
    tf.keras.utils.set_random_seed(7)
    table = tf.Variable(tf.random.normal([50, 40]))
    weight = tf.Variable(tf.random.normal([40, 999]))
    digests = []

    @tf.function
    def step(rows: tf.Tensor, compression: Any) -> None:
        with bps.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = tf.reduce_mean(tf.tanh(tf.gather(table, rows) @ weight) ** 2)
        for variable, gradient in zip((table, weight), tape.gradient(loss, [table, weight])):
            variable.assign_sub(tf.convert_to_tensor(gradient))

    generator = np.random.default_rng(rank)
    for compression in (bps.Compression.none, bps.Compression.bf16, bps.Compression.fp16):
        step(tf.constant(generator.integers(0, 50, size=8 + rank)), compression)
        gathered = bps.allgather(table[: 3 + rank], name="rows")
        state = b"".join(tensor.numpy().tobytes() for tensor in (table, weight, gathered))
        digests.append(hashlib.sha256(state).hexdigest())
    return [*digests, *_of_replicas()]


def _of_replicas() -> list[str]:
    """Of the weights behind each of two steps under MirroredStrategy, with four replicas that see different rows."""
    strategy = bps.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    seed = [7, bps.rank()]  # the values of rank 0 are everyone's
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([50, 40], seed))
        weight = tf.Variable(tf.random.stateless_normal([40, 999], seed))
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build([table, weight])

    @tf.function
    def step(count: tf.Tensor) -> Any:
        def of_replica() -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.random.stateless_uniform([8], [number, count], 0, 50, tf.int64)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(tf.gather(table, rows) @ weight) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, [table, weight]), [table, weight]))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(of_replica), axis=None)

    digests = []
    for count in range(2):
        loss = step(tf.constant(count)).numpy().tobytes()
        states = {
            b"".join(tensor.values[replica].numpy().tobytes() for tensor in (table, weight)) for replica in (0, 1)
        }
        assert len(states) == 1
        digests.append(hashlib.sha256(loss + states.pop()).hexdigest())
    return digests


def test_the_same_bits_on_all_ranks_and_in_all_runs(run_workers: RunWorkers) -> None:
    runs = [run_workers(_digests).results for _ in range(2)]
    assert runs[0][0] == runs[0][1] == runs[1][0] == runs[1][1]
    assert len(set(runs[0][0])) == 5
