"""What Horovod's users call push_pull: allreduce."""

from __future__ import annotations

from typing import Any

from byteps.jax.call import known_array
from byteps.jax.compression import Compression, Compressor
from byteps.jax.ops import push_pull
from byteps.process_set import ProcessSet, global_process_set
from byteps.reduce_op import ReduceOp

import jax
import jax.numpy as jnp


def _scaled(tree: Any, factor: float, factor_of_result: float = 1.0) -> Any:
    """The arrays times a factor. Raises ValueError for numbers that are no floats, also if it is the result that has a
    factor: before anything is sent. Raises TypeError as known_array."""

    def of(leaf: Any) -> jax.Array:
        array = known_array("an array to be scaled", leaf)
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            raise ValueError(f"an array of {array.dtype} cannot be scaled; it must be of floating-point numbers")
        return array if factor == 1.0 else array * jnp.asarray(factor, array.dtype)

    return tree if factor == factor_of_result == 1.0 else jax.tree_util.tree_map(of, tree)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Any:
    """push_pull of an array or a pytree, with factors before and behind it: see there.

    Raises:
        As push_pull; ValueError also if op and average are both given, and for factors of integers.
    """
    if op is not None and average is not None:
        raise ValueError("both op and average are given; give one of the two")
    reduced = push_pull(
        _scaled(tensor, prescale_factor, postscale_factor),
        True if average is None else average,
        name,
        priority=priority,
        compression=compression,
        op=op,
        process_set=process_set,
    )
    return _scaled(reduced, postscale_factor)
