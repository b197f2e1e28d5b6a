"""How many images a second a network of Keras trains on made-up data, with the flags that BytePS's benchmark has.

    bpslaunch --workers 2 -- python examples/tensorflow/synthetic_benchmark.py --model ResNet50 --batch-size 8

Models are those of keras.applications by name, and "small", which takes no time.
"""

import argparse
import time
from typing import Any

import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf


def build_model(name: str) -> tf.keras.Model:
    if name != "small":
        return getattr(tf.keras.applications, name)(weights=None)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1000),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fp16-pushpull", action="store_true", help="send gradients as float16")
    parser.add_argument("--model", default="ResNet50", help="of keras.applications, or small")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="steps that do not count")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps in each measurement")
    parser.add_argument("--num-iters", type=int, default=10, help="measurements")
    parser.add_argument("--eager", action="store_true", help="without tf.function")
    parser.add_argument("--no-cuda", action="store_true", help="leave GPUs alone")
    args = parser.parse_args()

    bps.init()
    if args.no_cuda:
        tf.config.set_visible_devices([], "GPU")
    for gpu in tf.config.get_visible_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)

    model = build_model(args.model)
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    random = np.random.default_rng(bps.rank())
    images = tf.constant(random.uniform(size=(args.batch_size, *model.input_shape[1:])), tf.float32)
    labels = tf.constant(random.integers(0, 999, size=args.batch_size))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=args.model == "small")
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none

    def step() -> None:
        with bps.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    train: Any = step if args.eager else tf.function(step)
    bps.broadcast_variables(model.variables, root_rank=0)

    def say(text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    device = "GPU" if tf.config.get_visible_devices("GPU") else "CPU"
    say(f"Model: {args.model}\nBatch size: {args.batch_size}\nNumber of {device}s: {bps.size()}")
    for _ in range(args.num_warmup_batches):
        train()
    speeds = []
    for number in range(args.num_iters):
        start = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            train()
        speeds.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - start))
        say(f"Iter #{number}: {speeds[-1]:.1f} img/sec per {device}")
    mean, spread = np.mean(speeds), 1.96 * np.std(speeds)
    say(f"Img/sec per {device}: {mean:.1f} +-{spread:.1f}")
    total = bps.size()
    say(f"Total img/sec on {total} {device}(s): {total * mean:.1f} +-{total * spread:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
