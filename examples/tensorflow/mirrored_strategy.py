"""Data-parallel training with tf.distribute: the replicas are the devices of all workers.

    bpslaunch --workers 2 -- python examples/tensorflow/mirrored_strategy.py --devices 2

The data are the 1797 images of 8 x 8 pixels that scikit-learn ships. What makes this training go over several workers
is marked [1] to [4]; everything else is as with TensorFlow's own MirroredStrategy.
"""

import argparse
import time

import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1, help="logical devices of the CPU, each with a replica")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all replicas")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(args.devices)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    bps.init()  # [1] join the job
    job = bps.info()
    tf.keras.utils.set_random_seed(args.seed + job.rank)  # so that only the strategy can make the workers' models equal

    digits = load_digits()
    images = digits.images.astype(np.float32).reshape(-1, 64) / 16
    order = np.random.default_rng(0).permutation(len(images))
    usable = len(order) // args.batch_size * args.batch_size
    mine = order[job.rank : usable : job.size]  # [2] each worker takes its own part of every batch

    # [3] the replicas of all workers
    strategy = bps.distribute.MirroredStrategy([f"/cpu:{device}" for device in range(args.devices)])
    with strategy.scope():
        layers = [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential(layers)
        optimizer = tf.keras.optimizers.Adam(args.learning_rate)
        optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        with tf.GradientTape() as tape:
            # [4] divided by the batch of all replicas of all workers
            loss = tf.nn.compute_average_loss(loss_of(labels, model(images)), global_batch_size=args.batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def train_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(batch,)), axis=None)

    # The strategy cuts a worker's batch into those of its replicas.
    data = tf.data.Dataset.from_tensor_slices((images[mine], digits.target[mine]))
    batches = strategy.experimental_distribute_dataset(data.batch(args.batch_size // job.size))
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        losses = [float(train_step(batch)) for batch in batches]
        if job.rank == 0:
            print(f"epoch {epoch:2}/{args.epochs}  loss {np.mean(losses):.4f}", flush=True)
    if job.rank == 0:
        print(
            f"digits: {strategy.num_replicas_in_sync} replicas in {time.perf_counter() - start:.1f} s, "
            f"{job.size} workers, {job.num_servers} servers",
            flush=True,
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
