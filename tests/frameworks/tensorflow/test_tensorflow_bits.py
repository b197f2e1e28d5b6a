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
    """Of the weights behind a few steps, with dense, sparse and compressed gradients, and of a gather."""
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
    return digests


def test_the_same_bits_on_all_ranks_and_in_all_runs(run_workers: RunWorkers) -> None:
    runs = [run_workers(_digests).results for _ in range(2)]
    assert runs[0][0] == runs[0][1] == runs[1][0] == runs[1][1]
    assert len(set(runs[0][0])) == 3
