"""Data-parallel training of a small convolutional network on handwritten digits, in JAX.

    bpslaunch --workers 2 -- python examples/jax/digits.py

The data are the 1797 images of 8 x 8 pixels that scikit-learn ships. What makes this training data-parallel is marked
[1] to [5]; everything else is as in any JAX program, and with one worker it is one:

    python examples/jax/digits.py
"""

import argparse
import time
from typing import Any

import byteps.jax as bps
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

Params = dict[str, Any]


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (N, 8, 8, 1) and labels (N); a fifth of the images is for the test."""
    digits = load_digits()
    images = digits.images.astype(np.float32)[..., None] / 16
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))  # the same on all workers
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return images[train], labels[train], images[test], labels[test]


def init_params(key: jax.Array) -> Params:
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense1": (32 * 4 * 4, 64), "dense2": (64, 10)}
    params = {}
    for name, shape in shapes.items():
        key, own = jax.random.split(key)
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        params[name] = {"w": scale * jax.random.normal(own, shape), "b": jnp.zeros(shape[-1])}
    return params


def logits(params: Params, images: jax.Array) -> jax.Array:
    x = images
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[name]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + params[name]["b"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["dense1"]["w"] + params["dense1"]["b"])
    return x @ params["dense2"]["w"] + params["dense2"]["b"]


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels).mean()


@jax.jit
def accuracy(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits(params, images).argmax(-1) == labels).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all workers")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    bps.init()  # [1] join the job
    job = bps.info()

    images, labels, test_images, test_labels = load_data()
    params = init_params(jax.random.key(args.seed + job.rank))  # so that only [2] can make the workers' models equal
    params = bps.broadcast_parameters(params, root_rank=0)  # [2] start from the same weights
    # [3] average the gradients over all workers, each as soon as it is computed
    optimizer = bps.DistributedOptimizer(optax.adam(args.learning_rate))
    state = optimizer.init(params)

    @jax.jit
    def train_step(params: Params, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Params, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    batch_size = max(1, args.batch_size // job.size)
    steps = len(labels) // (batch_size * job.size)
    correct = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        # The same order on all workers; [4] each takes its own part of every batch.
        order = np.random.default_rng(args.seed + epoch).permutation(len(labels))
        mine = order[job.rank :: job.size]
        epoch_start = time.perf_counter()
        losses = []
        for step in range(steps):
            batch = mine[step * batch_size : (step + 1) * batch_size]
            params, state, loss = train_step(params, state, images[batch], labels[batch])
            losses.append(loss)
        mean_loss = float(bps.push_pull(jnp.mean(jnp.stack(losses)), name="loss"))  # [5] the mean over all workers
        seconds = time.perf_counter() - epoch_start
        correct = float(accuracy(params, test_images, test_labels))
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
