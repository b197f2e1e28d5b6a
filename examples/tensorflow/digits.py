"""Data-parallel training of a small convolutional network on handwritten digits, with a training loop of one's own.

    bpslaunch --workers 2 -- python examples/tensorflow/digits.py

The data are the 1797 images of 8 x 8 pixels that scikit-learn ships. What makes this training data-parallel is marked
[1] to [5]; everything else is as in any TensorFlow program, and with one worker it is one:

    python examples/tensorflow/digits.py
"""

import argparse
import time

import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (N, 8, 8, 1) and labels (N); a fifth of the images is for the test."""
    digits = load_digits()
    images = digits.images.astype(np.float32)[..., np.newaxis] / 16
    order = np.random.default_rng(0).permutation(len(images))  # the same on all workers
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return images[train], digits.target[train], images[test], digits.target[test]


def build_model() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
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
    tf.keras.utils.set_random_seed(args.seed + job.rank)  # so that only [3] can make the workers' models equal

    images, labels, test_images, test_labels = load_data()
    model = build_model()
    optimizer = tf.keras.optimizers.Adam(args.learning_rate)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        # [2] average the gradients over all workers, while the backward pass still runs
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    # [3] start from the same weights and the same optimizer
    variables = optimizer.variables
    bps.broadcast_variables([*model.variables, *(variables() if callable(variables) else variables)], root_rank=0)

    batch_size = max(1, args.batch_size // job.size)
    steps = len(labels) // (batch_size * job.size)
    correct = mean_loss = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        # The same order on all workers; [4] each takes its own part of every batch.
        mine = np.random.default_rng(args.seed + epoch).permutation(len(labels))[job.rank :: job.size]
        epoch_start = time.perf_counter()
        total_loss = tf.zeros([])
        for step in range(steps):
            batch = mine[step * batch_size : (step + 1) * batch_size]
            total_loss += train_step(tf.constant(images[batch]), tf.constant(labels[batch]))
        seconds = time.perf_counter() - epoch_start

        mean_loss = float(bps.push_pull(total_loss / steps, name="loss"))  # [5] the mean over all workers
        correct = float(np.mean(np.argmax(model(test_images), axis=1) == test_labels))
        if job.rank == 0:
            speed = steps * batch_size * job.size / seconds
            print(
                f"epoch {epoch:2}/{args.epochs}  loss {mean_loss:.4f}  test accuracy {correct:.4f}  "
                f"{speed:.0f} samples/s",
                flush=True,
            )

    if job.rank == 0:
        print(
            f"digits: test accuracy {correct:.4f} in {time.perf_counter() - start:.1f} s, {job.size} workers, "
            f"{job.num_servers} servers, transport {job.transport}, scheduler {job.scheduler}",
            flush=True,
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
