"""Data-parallel training of a small convolutional network on handwritten digits, with fit().

    KERAS_BACKEND=jax bpslaunch --workers 2 -- python examples/keras/digits.py

KERAS_BACKEND is tensorflow, jax or torch. The data are the 1797 images of 8 x 8 pixels that scikit-learn ships. What
makes this training data-parallel is marked [1] to [5]; everything else is as in any program with Keras, and with one
worker it is one:

    python examples/keras/digits.py
"""

import argparse
import time

import byteps.keras as bps
import keras
import numpy as np
from sklearn.datasets import load_digits


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (N, 8, 8, 1) and labels (N); a fifth of the images is for the test."""
    digits = load_digits()
    images = digits.images.astype(np.float32)[..., np.newaxis] / 16
    order = np.random.default_rng(0).permutation(len(images))  # the same on all workers
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return images[train], digits.target[train], images[test], digits.target[test]


def build_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all workers")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    bps.init()  # [1] join the job
    job = bps.info()
    keras.utils.set_random_seed(args.seed + job.rank)  # so that only [4] can make the workers' models equal

    images, labels, test_images, test_labels = load_data()
    batch_size = max(1, args.batch_size // job.size)
    usable = len(labels) // (batch_size * job.size) * batch_size * job.size
    mine = slice(job.rank, usable, job.size)  # [2] each worker takes its own part of every batch

    model = build_model()
    # [3] average the gradients over all workers
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(args.learning_rate))
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=keras.backend.backend() == "jax",
    )
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),  # [4] start from the same weights and the same optimizer
        bps.callbacks.MetricAverageCallback(),  # [5] metrics are the means over all workers
    ]
    start = time.perf_counter()
    history = model.fit(
        images[mine],
        labels[mine],
        batch_size=batch_size,
        epochs=args.epochs,
        shuffle=False,
        callbacks=callbacks,
        verbose=0,
    ).history
    seconds = time.perf_counter() - start

    correct = float(np.mean(np.argmax(model.predict(test_images, verbose=0), axis=1) == test_labels))
    if job.rank == 0:
        for epoch, loss in enumerate(history["loss"], 1):
            print(f"epoch {epoch:2}/{args.epochs}  loss {loss:.4f}")
        print(
            f"digits: test accuracy {correct:.4f} in {seconds:.1f} s, {job.size} workers, {job.num_servers} servers, "
            f"transport {job.transport}, scheduler {job.scheduler}",
            flush=True,
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
