"""What push_pull adds to a graph of TensorFlow, a program of JAX, or to MXNet's engine, over an operation that does
nothing.

    python tools/operation_overhead.py tensorflow
    python tools/operation_overhead.py jax
    bpslaunch --workers 2 -- python tools/operation_overhead.py mxnet

Prints how much longer each operation takes than the identity does: side by side, where none depends on another, and in
a chain, where each waits for the one before. A worker alone measures the binding; in a chain also the way of an
operation to its end, through the library's thread and back. The fastest of a number of runs counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

# float32 values of an operation: few, and enough for XLA to run the parts of a program side by side.
VALUES = 256


def fastest(bps: Any, run: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest run; as many runs as rank 0 does in `seconds`."""
    run()
    start = time.perf_counter()
    run()
    count = bps.broadcast_object(max(5, int(seconds / (time.perf_counter() - start))), 0)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def tensorflow_runs(operations: int, chained: bool) -> tuple[Any, list[Callable[[], object]]]:
    """byteps.tensorflow, and a run of a graph of identities and one of push_pulls."""
    import byteps.tensorflow as bps
    import tensorflow as tf

    bps.init()
    arrays = [tf.ones([VALUES]) for _ in range(operations)]

    def graph(operation: Callable[[tf.Tensor, str], tf.Tensor]) -> Callable[[], object]:
        @tf.function
        def body(arrays: list[tf.Tensor]) -> list[tf.Tensor]:
            results: list[tf.Tensor] = []
            for number, array in enumerate(arrays):
                source = results[-1] if chained and results else array
                results.append(operation(source, f"{chained} {number}"))
            return results

        return lambda: [result.numpy() for result in body(arrays)[-1:]]

    # An identity that is not optimized away.
    return bps, [
        graph(lambda x, _: tf.raw_ops.PreventGradient(input=x)),
        graph(lambda x, name: bps.push_pull(x, name=name)),
    ]


def jax_runs(operations: int, chained: bool) -> tuple[Any, list[Callable[[], object]]]:
    """byteps.jax, and a run of a compiled program of identities and one of push_pulls."""
    import byteps.jax as bps
    import jax
    import jax.numpy as jnp

    bps.init()
    arrays = [jnp.ones(VALUES) for _ in range(operations)]

    def program(operation: Callable[[jax.Array, str], jax.Array]) -> Callable[[], object]:
        def body(arrays: list[jax.Array]) -> list[jax.Array]:
            results = []
            for number, array in enumerate(arrays):
                source = results[-1] if chained and results else array
                results.append(operation(source, f"{chained} {number}"))
            return results

        compiled = jax.jit(body)
        return lambda: jax.block_until_ready(compiled(arrays))

    barrier = jax.lax.optimization_barrier
    return bps, [program(lambda x, _: barrier(x)), program(lambda x, name: bps.push_pull(x, name=name))]


def mxnet_runs(operations: int, chained: bool) -> tuple[Any, list[Callable[[], object]]]:
    """byteps.mxnet, and a run of identities through the engine and one of push_pulls."""
    import byteps.mxnet as bps
    import mxnet as mx

    bps.init()
    arrays = [mx.nd.ones((VALUES,)) for _ in range(operations)]

    def of(operation: Callable[[mx.nd.NDArray, str], object]) -> Callable[[], object]:
        def run() -> None:
            for number, array in enumerate(arrays):
                operation(arrays[0] if chained else array, f"{chained} {number}")
            mx.nd.waitall()

        return run

    return bps, [of(lambda x, _: mx.nd.identity(x, out=x)), of(lambda x, name: bps.byteps_push_pull(x, name=name))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=["jax", "mxnet", "tensorflow"])
    parser.add_argument("--operations", type=int, default=100, help="of one run")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    args = parser.parse_args()
    runs_of = {"jax": jax_runs, "mxnet": mxnet_runs, "tensorflow": tensorflow_runs}[args.framework]
    for chained in (False, True):
        bps, runs = runs_of(args.operations, chained)
        identity, push_pull = (1e6 * fastest(bps, run, args.seconds) / args.operations for run in runs)
        if bps.rank() == 0:
            shape = "in a chain" if chained else "side by side"
            print(
                f"{args.framework}, {bps.size()} workers, {args.operations} operations {shape}: identity "
                f"{identity:.2f} us, push_pull {push_pull:.2f} us, {push_pull - identity:.2f} us more",
                flush=True,
            )
    bps.shutdown()


if __name__ == "__main__":
    main()
