"""How long a training step of a transformer takes in JAX: with byteps.jax, and with jax.distributed, in turns.

    bpslaunch --workers 2 -- python tools/jax_step.py

Both run in the same processes, on one CPU device of each. The step of jax.distributed is a compiled program over all
processes' devices, whose batch is sharded and whose gradients XLA reduces (its collectives are Gloo's); that of byteps
is a program of this process alone. A third, without communication, shows what is left to overlap. The ratio is the
median over neighbouring steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import byteps.jax as bps
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def transformer() -> Any:
    """The example's module."""
    path = Path(__file__).parent.parent / "examples" / "jax" / "transformer.py"
    spec = importlib.util.spec_from_file_location("transformer", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["transformer"] = module
    spec.loader.exec_module(module)
    return module


def join_jax() -> None:
    """Every worker is a process of jax.distributed as well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(bps.broadcast_object(address, 0), bps.size(), bps.rank())


def timed(step: Callable[[], Any]) -> float:
    """Milliseconds of a step that all workers begin together."""
    bps.barrier("step")
    start = time.perf_counter()
    jax.block_until_ready(step())
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8, help="of each worker")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    bps.init()
    join_jax()
    model = transformer()
    params = model.init_params(jax.random.key(1), args.layers, args.width, args.length)
    text = np.random.default_rng(bps.rank()).integers(0, model.CHARACTERS, (args.batch_size, args.length + 1))

    def loss_of(params: Any, text: jax.Array) -> jax.Array:
        return model.loss_of(params, text, 4)

    def stepper(optimizer: Any, params: Any, batch: Any) -> Callable[[], Any]:
        @jax.jit
        def step(params: Any, state: Any, batch: jax.Array) -> tuple[Any, Any]:
            gradients = jax.grad(loss_of)(params, batch)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        held = [params, jax.jit(optimizer.init)(params)]

        def run() -> Any:
            held[:] = step(*held, batch)
            return held[0]

        return run

    here = jax.local_devices()[0]
    mesh = Mesh(np.array(jax.devices()), ("workers",))
    everywhere, by_worker = NamedSharding(mesh, P()), NamedSharding(mesh, P("workers"))
    shared = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(everywhere, np.asarray(leaf)), params)
    mine = jax.device_put((params, jnp.asarray(text)), here)
    ways = {
        "byteps": stepper(bps.DistributedOptimizer(optax.sgd(1e-3)), *mine),
        "jax.distributed": stepper(
            optax.sgd(1e-3), shared, jax.make_array_from_process_local_data(by_worker, np.asarray(text))
        ),
        "no communication": stepper(optax.sgd(1e-3), *mine),
    }
    for step in ways.values():
        for _ in range(3):
            timed(step)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.steps):
        for way, step in ways.items():
            times[way].append(timed(step))
    if bps.rank() == 0:
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        print(f"{bps.size()} workers, {count / 1e6:.2f} million parameters, {args.steps} steps each")
        for way, of in times.items():
            ratio = statistics.median(one / other for one, other in zip(of, times["jax.distributed"]))
            print(
                f"{way}: median {statistics.median(of):.1f} ms, least {min(of):.1f} ms, ratio {ratio:.2f}", flush=True
            )
    jax.distributed.shutdown()
    bps.shutdown()


if __name__ == "__main__":
    main()
