"""Data-parallel training of a small convolutional network on handwritten digits, in MXNet's Gluon.

    bpslaunch --workers 2 -- python examples/mxnet/digits.py

The data are the 1797 images of 8 x 8 pixels that scikit-learn ships. What makes this training data-parallel is marked
[1] to [4]; everything else is as in any Gluon program, and with one worker it is one:

    python examples/mxnet/digits.py
"""

import argparse
import time

import byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from sklearn.datasets import load_digits


def load_data() -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
    """Training and test images (N, 1, 8, 8) and labels (N); a fifth of the images is for the test."""
    digits = load_digits()
    images = digits.images.astype(np.float32)[:, None] / 16
    labels = digits.target.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))  # the same on all workers
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return tuple(mx.nd.array(part) for part in (images[train], labels[train], images[test], labels[test]))


def build_model() -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, kernel_size=3, padding=1, activation="relu"),
        nn.Conv2D(32, kernel_size=3, padding=1, activation="relu"),
        nn.MaxPool2D(2),
        nn.Dense(64, activation="relu"),
        nn.Dense(10),
    )
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all workers")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--kvstore", action="store_true", help="use MXNet's own Trainer with kvstore='byteps'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", help="the parameters of this worker, as <SAVE>.<rank>")
    args = parser.parse_args()

    bps.init()  # [1] join the job
    job = bps.info()
    mx.random.seed(args.seed + job.rank)  # so that only [2] can make the workers' models equal

    images, labels, test_images, test_labels = load_data()
    net = build_model()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    criterion = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    batch_size = max(1, args.batch_size // job.size)
    options = {"learning_rate": args.learning_rate}
    # [2] average the gradients over all workers while the backward pass still runs, and start from the same weights
    if args.kvstore:
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", options, kvstore="byteps")
        bps.broadcast_parameters(net.collect_params())
        step_size = batch_size * job.size  # a store sums, and a Trainer divides by the batch of all workers
    else:
        trainer = bps.DistributedTrainer(net.collect_params(), "adam", options)
        step_size = batch_size

    steps = len(labels) // (batch_size * job.size)
    correct = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        # The same order on all workers; [3] each takes its own part of every batch.
        order = np.random.default_rng(args.seed + epoch).permutation(len(labels))
        mine = order[job.rank :: job.size]
        epoch_start = time.perf_counter()
        total_loss = mx.nd.zeros((1,))
        for step in range(steps):
            batch = mine[step * batch_size : (step + 1) * batch_size]
            with mx.autograd.record():
                loss = criterion(net(images[batch]), labels[batch])
            loss.backward()
            trainer.step(step_size)
            total_loss += loss.mean()
        mean_loss = bps.push_pull(total_loss / steps, name="loss").asscalar()  # [4] the mean over all workers
        seconds = time.perf_counter() - epoch_start
        correct = (net(test_images).argmax(axis=1) == test_labels).mean().asscalar()
        if job.rank == 0:
            speed = steps * batch_size * job.size / seconds
            print(
                f"epoch {epoch:2}/{args.epochs}  loss {mean_loss:.4f}  test accuracy {correct:.4f}  "
                f"{speed:.0f} samples/s",
                flush=True,
            )

    if args.save:
        net.save_parameters(f"{args.save}.{job.rank}")
    if job.rank == 0:
        print(
            f"digits: test accuracy {correct:.4f} in {time.perf_counter() - start:.1f} s, {job.size} workers, "
            f"{job.num_servers} servers, transport {job.transport}, scheduler {job.scheduler}",
            flush=True,
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
