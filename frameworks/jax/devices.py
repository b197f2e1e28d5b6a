"""Several devices of one process: they reduce among themselves first, and each sends a part of the sum.

    part = own_part(axes, op, array)                            # of the reduction over the devices
    whole = put_together(axes, op, push_pull(part), array.shape)

So a worker sends as much as with one device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Union

from byteps.reduce_op import Average, Max, Min, Product, ReduceOp, Sum

import jax
import jax.numpy as jnp
from jax import lax

Axes = tuple[str, ...]
AxisName = Union[str, Sequence[str], None]

_STEPS = {
    Product: jnp.multiply,
    ReduceOp.BitAnd: jnp.bitwise_and,
    ReduceOp.BitOr: jnp.bitwise_or,
    ReduceOp.BitXor: jnp.bitwise_xor,
}


def axes_of(axis_name: AxisName) -> Axes:
    """The axes that an argument `axis_name` names."""
    if axis_name is None:
        return ()
    return (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)


def own_part(axes: Axes, op: ReduceOp, array: jax.Array) -> jax.Array:
    """What this device has to send: of the reduction of `array` over the devices along `axes` of shard_map or pmap."""
    devices = lax.psum(1, axes)
    if devices == 1:
        return array
    length = -(-array.size // devices)
    flat = jnp.pad(array.reshape(-1), (0, length * devices - array.size))
    if op in (Sum, Average):
        return lax.psum_scatter(flat, axes, tiled=True)
    if op is Min:
        whole = lax.pmin(flat, axes)
    elif op is Max:
        whole = lax.pmax(flat, axes)
    else:
        whole = functools.reduce(_STEPS[op], lax.all_gather(flat, axes))
    return lax.dynamic_slice_in_dim(whole, lax.axis_index(axes) * length, length)


def put_together(axes: Axes, op: ReduceOp, part: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The whole reduction, on every device, of the parts that were reduced over the workers."""
    devices = lax.psum(1, axes)
    if devices == 1:
        return part
    if op is Average:
        part = part // devices if jnp.issubdtype(part.dtype, jnp.integer) else part / devices
    return lax.all_gather(part, axes, tiled=True)[: math.prod(shape)].reshape(shape)
