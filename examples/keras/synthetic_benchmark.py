"""How many images a second fit() of Keras trains on made-up data, with the flags that BytePS's benchmark has.

    KERAS_BACKEND=jax bpslaunch --workers 2 -- python examples/keras/synthetic_benchmark.py --model ResNet50

KERAS_BACKEND is tensorflow, jax or torch. Models are those of keras.applications by name, and "small", which takes no
time.
"""

import argparse
import os
import time


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fp16-pushpull", action="store_true", help="send gradients as float16")
    parser.add_argument("--model", default="ResNet50", help="of keras.applications, or small")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="steps that do not count")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps in each measurement")
    parser.add_argument("--num-iters", type=int, default=10, help="measurements")
    parser.add_argument("--no-cuda", action="store_true", help="leave GPUs alone")
    return parser.parse_args()


args = parsed()
if args.no_cuda:  # before the backend is imported, which takes what it finds
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import byteps.keras as bps  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402


def build_model(name: str) -> keras.Model:
    if name != "small":
        return getattr(keras.applications, name)(weights=None)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1000),
        ]
    )


def main() -> None:
    bps.init()
    model = build_model(args.model)
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    model.compile(
        optimizer=bps.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=args.model == "small"),
        jit_compile=keras.backend.backend() == "jax",
    )
    random = np.random.default_rng(bps.rank())
    images = random.uniform(size=(args.batch_size, *model.input_shape[1:])).astype(np.float32)
    labels = random.integers(0, 999, size=args.batch_size)

    def train(steps: int) -> None:
        # An epoch is so many times the same batch.
        rows = np.tile(np.arange(args.batch_size), steps)
        callbacks = [] if model.optimizer.built else [bps.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.fit(images[rows], labels[rows], args.batch_size, shuffle=False, verbose=0, callbacks=callbacks)

    def say(text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    say(f"Model: {args.model}\nBatch size: {args.batch_size}\nNumber of workers: {bps.size()}")
    train(max(1, args.num_warmup_batches))
    speeds = []
    for number in range(args.num_iters):
        start = time.perf_counter()
        train(args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - start))
        say(f"Iter #{number}: {speeds[-1]:.1f} img/sec per worker")
    mean, spread = np.mean(speeds), 1.96 * np.std(speeds)
    say(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    total = bps.size()
    say(f"Total img/sec on {total} worker(s): {total * mean:.1f} +-{total * spread:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
