"""Data-parallel training of a small transformer that learns to write Python, in JAX.

    bpslaunch --workers 2 -- python examples/jax/transformer.py

Its text is its own source, character by character. Several devices per worker, each with a part of its batch:

    XLA_FLAGS=--xla_force_host_platform_device_count=2 bpslaunch --workers 2 -- python examples/jax/transformer.py

The batch is that of all workers and devices together, so the same is learned by one process:

    python examples/jax/transformer.py
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import byteps.jax as bps
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Params = dict[str, Any]

CHARACTERS = 128


def init_params(key: jax.Array, layers: int, width: int, length: int) -> Params:
    def matrix(rows: int, columns: int) -> jax.Array:
        nonlocal key
        key, own = jax.random.split(key)
        return jax.random.normal(own, (rows, columns)) / np.sqrt(rows)

    return {
        "characters": 0.1 * matrix(CHARACTERS, width),
        "places": 0.1 * matrix(length, width),
        "layers": [
            {
                "attention": {"norm": jnp.ones(width), "in": matrix(width, 3 * width), "out": matrix(width, width)},
                "dense": {"norm": jnp.ones(width), "in": matrix(width, 4 * width), "out": matrix(4 * width, width)},
            }
            for _ in range(layers)
        ],
        "norm": jnp.ones(width),
        "logits": matrix(width, CHARACTERS),
    }


def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    return scale * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(params: Params, x: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape
    parts = (normalized(x, params["norm"]) @ params["in"]).reshape(batch, length, 3, heads, width // heads)
    query, key, value = (parts[:, :, i] for i in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width // heads)
    scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(batch, length, width) @ params["out"]


def dense(params: Params, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(normalized(x, params["norm"]) @ params["in"]) @ params["out"]


def loss_of(params: Params, text: jax.Array, heads: int) -> jax.Array:
    """The mean over all characters of `text` (batch, length + 1), each predicted from those before it."""
    x = params["characters"][text[:, :-1]] + params["places"][: text.shape[1] - 1]
    for layer in params["layers"]:
        x = x + attention(layer["attention"], x, heads)
        x = x + dense(layer["dense"], x)
    logits = normalized(x, params["norm"]) @ params["logits"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()


def over_devices(step: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """`step` on every device of this worker: all parameters, a part of the batch."""
    specs = {"in_specs": (P(), P(), P("devices")), "out_specs": P()}
    if hasattr(jax, "shard_map"):
        return jax.shard_map(step, mesh=mesh, check_vma=False, **specs)
    from jax.experimental.shard_map import shard_map

    return shard_map(step, mesh=mesh, check_rep=False, **specs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per step, over all workers and devices")
    parser.add_argument("--length", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="the parameters of this worker, as <SAVE>.<rank>.npz")
    args = parser.parse_args()

    bps.init()
    job = bps.info()
    mesh = Mesh(np.array(jax.local_devices()), ("devices",))
    share = args.batch_size // job.size
    if share * job.size != args.batch_size or share % mesh.size:
        parser.error(f"--batch-size {args.batch_size} cannot be divided by {job.size} workers and {mesh.size} devices")

    params = init_params(jax.random.key(args.seed + job.rank), args.layers, args.width, args.length)
    params = bps.broadcast_parameters(params, root_rank=0)
    optimizer = bps.DistributedOptimizer(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(args.learning_rate)),
        compression=getattr(bps.Compression, args.compression),
        axis_name="devices",
    )
    state = optimizer.init(params)
    params, state = jax.device_put((params, state), NamedSharding(mesh, P()))

    def train_step(params: Params, state: Any, text: jax.Array) -> tuple[Params, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, text, args.heads)
        updates, state = optimizer.update(gradients, state, params)
        # The mean over all workers and devices, for people to see.
        return optax.apply_updates(params, updates), state, bps.push_pull(loss, name="loss", axis_name="devices")

    step = partial(jax.jit, donate_argnums=(0, 1))(over_devices(train_step, mesh))

    text = np.frombuffer(Path(__file__).read_text(encoding="ascii").encode(), np.uint8).astype(np.int32)
    random = np.random.default_rng(args.seed)  # the same on all workers
    start = time.perf_counter()
    for number in range(1, args.steps + 1):
        begins = random.integers(0, len(text) - args.length - 1, args.batch_size)
        mine = begins[job.rank * share : (job.rank + 1) * share]  # each worker takes its own part of the batch
        batch = np.stack([text[begin : begin + args.length + 1] for begin in mine])
        params, state, loss = step(params, state, batch)
        if job.rank == 0 and (number % 20 == 0 or number in (1, args.steps)):
            print(f"step {number:4}/{args.steps}  loss {float(loss):.4f}", flush=True)
    jax.block_until_ready(params)
    seconds = time.perf_counter() - start

    if args.save:
        leaves = {str(index): np.asarray(leaf) for index, leaf in enumerate(jax.tree_util.tree_leaves(params))}
        np.savez(f"{args.save}.{job.rank}.npz", **leaves)
    if job.rank == 0:
        print(
            f"transformer: loss {float(loss):.4f}, {1e3 * seconds / args.steps:.1f} ms per step, {job.size} workers, "
            f"{mesh.size} devices each, {job.num_servers} servers, transport {job.transport}",
            flush=True,
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
