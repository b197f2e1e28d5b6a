"""How long a training step of a small residual network takes in tf_keras: with byteps, and with TensorFlow's own
MultiWorkerMirroredStrategy, in turns.

    bpslaunch --workers 2 -- python tools/keras_step.py

Both run in the same processes, on the CPU. A step without communication shows what is left to overlap. The ratio is the
median over neighbouring steps. (Keras 3 does not work with that strategy.)
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf


def join_tensorflow() -> tf.distribute.Strategy:
    """Every worker is one of TensorFlow's cluster as well; before any tensor is made."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = f"127.0.0.1:{free.getsockname()[1]}"
    workers = bps.allgather_object(own)
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": bps.rank()}}
    )
    return tf.distribute.MultiWorkerMirroredStrategy()


def network(width: int, blocks: int) -> Any:
    """Residual blocks of two convolutions on images of 32 x 32."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    images = layers.Input((32, 32, 3))
    x = layers.Conv2D(width, 3, padding="same", use_bias=False)(images)
    for block in range(blocks):
        stride = 2 if block % 2 == 1 else 1
        width *= stride
        y = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(y))
        shortcut = x if stride == 1 else layers.Conv2D(width, 1, stride, use_bias=False)(x)
        x = layers.ReLU()(layers.Add()([shortcut, y]))
    return tf.keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def timed(step: Callable[[], Any]) -> float:
    """Milliseconds of a step that all workers begin together."""
    bps.barrier("step")
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=8, help="of each worker")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    bps.init()
    strategy = join_tensorflow()
    generator = np.random.default_rng(bps.rank())
    images = tf.constant(generator.normal(size=(args.batch_size, 32, 32, 3)), tf.float32)
    labels = tf.constant(generator.integers(0, 10, args.batch_size))
    total = args.batch_size * bps.size()

    def stepper(wrap: Callable[[tf.GradientTape], tf.GradientTape], run: Callable[..., Any], batch: int) -> Any:
        model = network(args.width, args.blocks)
        optimizer = tf.keras.optimizers.legacy.SGD(0.01)

        def of_replica() -> None:
            with wrap(tf.GradientTape()) as tape:
                logits = model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_sum(losses) / batch
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        @tf.function
        def step() -> None:
            run(of_replica)

        return step, model

    ways = {
        "byteps": stepper(bps.DistributedGradientTape, lambda step: step(), args.batch_size)[0],
        "no communication": stepper(lambda tape: tape, lambda step: step(), args.batch_size)[0],
    }
    with strategy.scope():
        ways["MultiWorkerMirroredStrategy"], model = stepper(lambda tape: tape, strategy.run, total)
    for step in ways.values():
        for _ in range(3):
            timed(step)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.steps):
        for way, step in ways.items():
            times[way].append(timed(step))
    if bps.rank() == 0:
        print(f"{bps.size()} workers, {model.count_params() / 1e6:.2f} million parameters, {args.steps} steps each")
        for way, of in times.items():
            ratio = statistics.median(one / other for one, other in zip(of, times["MultiWorkerMirroredStrategy"]))
            print(
                f"{way}: median {statistics.median(of):.1f} ms, least {min(of):.1f} ms, ratio {ratio:.2f}", flush=True
            )
    bps.barrier("end")
    bps.shutdown()


if __name__ == "__main__":
    main()
