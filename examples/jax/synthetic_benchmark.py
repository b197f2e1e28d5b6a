"""How fast a network trains on made-up images, in JAX, with the flags of BytePS's synthetic benchmarks.

    bpslaunch --workers 2 -- python examples/jax/synthetic_benchmark.py --model small --batch-size 8

Reports images per second of each worker and of all, with the interval of confidence over the iterations.
"""

import argparse
import time
from typing import Any

import byteps.jax as bps
import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = list[dict[str, jax.Array]]

# Channels of the stages (a convolution of 3 x 3 that halves the image), and the width of the dense layer behind them.
MODELS = {"small": ((16, 32, 64), 128), "medium": ((64, 128, 256, 512), 1024), "wide": ((64, 128, 256), 4096)}


def init_params(key: jax.Array, model: str, classes: int) -> Params:
    channels, width = MODELS[model]
    shapes: list[tuple[int, ...]] = [(3, 3, i, o) for i, o in zip((3, *channels), channels)]
    shapes += [(channels[-1], width), (width, classes)]
    keys = jax.random.split(key, len(shapes))
    return [
        {"w": np.sqrt(2 / np.prod(shape[:-1])) * jax.random.normal(own, shape), "b": jnp.zeros(shape[-1])}
        for own, shape in zip(keys, shapes)
    ]


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    x = images
    *stages, dense, last = params
    for stage in stages:
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, stage["w"], (2, 2), "SAME", dimension_numbers=dimensions))
        x = x + stage["b"]
    x = jax.nn.relu(x.mean((1, 2)) @ dense["w"] + dense["b"])
    return optax.softmax_cross_entropy_with_integer_labels(x @ last["w"] + last["b"], labels).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fp16-pushpull", "--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--model", choices=sorted(MODELS), default="small")
    parser.add_argument("--batch-size", type=int, default=32, help="images of each worker per step")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--no-cuda", action="store_true", help="accepted: this runs on processors in any case")
    args = parser.parse_args()

    bps.init()
    jax.config.update("jax_platforms", "cpu")
    params = init_params(jax.random.key(bps.rank()), args.model, args.num_classes)
    params = bps.broadcast_parameters(params, root_rank=0)
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    optimizer = bps.DistributedOptimizer(optax.sgd(0.01), compression=compression)
    state = optimizer.init(params)
    random = np.random.default_rng(bps.rank())
    images = random.standard_normal((args.batch_size, args.image_size, args.image_size, 3), np.float32)
    labels = random.integers(0, args.num_classes, args.batch_size)

    @jax.jit
    def step(params: Params, state: Any) -> tuple[Params, Any]:
        updates, state = optimizer.update(jax.grad(loss_of)(params, images, labels), state, params)
        return optax.apply_updates(params, updates), state

    def run(batches: int) -> float:
        """Images per second of this worker."""
        nonlocal params, state
        start = time.perf_counter()
        for _ in range(batches):
            params, state = step(params, state)
        jax.block_until_ready(params)
        return args.batch_size * batches / (time.perf_counter() - start)

    def log(text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    numbers = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    log(f"Model: {args.model} ({numbers / 1e6:.1f} million parameters)")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of workers: {bps.size()}")
    log("Running warmup...")
    run(args.num_warmup_batches)
    log("Running benchmark...")
    speeds = []
    for number in range(args.num_iters):
        speeds.append(run(args.num_batches_per_iter))
        log(f"Iter #{number}: {speeds[-1]:.1f} img/sec per worker")
    mean, spread = float(np.mean(speeds)), float(1.96 * np.std(speeds))
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} worker(s): {bps.size() * mean:.1f} +-{bps.size() * spread:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
