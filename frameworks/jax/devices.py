"""Several devices of one process: they reduce among themselves first, and each sends a part of the sum.

    part = own_part(axes, op, array)                            # of the reduction over the devices
    whole = put_together(axes, op, push_pull(part), array)

So a worker sends as much as with one device. What is sent instead of the part (compression) is made of the part, so
that the devices reduce with the precision that they have.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Union

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


def part_name(axes: Axes, name: str) -> str:
    """The name of the parts. A worker with another number of devices has others, of another size, and is named by the
    workers that wait for it."""
    devices = lax.psum(1, axes) if axes else 1
    return name if devices == 1 else f"{name} of {devices} devices"


def _is_narrow(dtype: Any, kind: Any) -> bool:
    return jnp.issubdtype(dtype, kind) and jnp.dtype(dtype).itemsize < 4


def own_part(axes: Axes, op: ReduceOp, array: jax.Array) -> jax.Array:
    """What this device has to send: of the reduction of `array` over the devices along `axes` of shard_map or pmap.

    Floats of 16 bits are reduced in float32, as servers do, and an average of floats is divided by the devices here: so
    it does not overflow on its way. Averages of integers are divided behind the workers' sum, which rounds once; those
    of fewer than 32 bits travel as int32, in which that sum does not wrap.
    """
    devices = lax.psum(1, axes)
    if devices == 1:
        return array
    length = -(-array.size // devices)
    flat = jnp.pad(array.reshape(-1), (0, length * devices - array.size))
    sent = array.dtype
    if _is_narrow(sent, jnp.floating):
        flat = flat.astype(jnp.float32)
    elif op is Average and _is_narrow(sent, jnp.integer):
        sent = jnp.dtype(jnp.int32)
        flat = flat.astype(sent)
    if op in (Sum, Average):
        part = lax.psum_scatter(flat, axes, tiled=True)
        if op is Average and jnp.issubdtype(sent, jnp.inexact):
            part = part / devices
        return part.astype(sent)
    if op is Min:
        whole = lax.pmin(flat, axes)
    elif op is Max:
        whole = lax.pmax(flat, axes)
    else:
        whole = functools.reduce(_STEPS[op], lax.all_gather(flat, axes))
    return lax.dynamic_slice_in_dim(whole, lax.axis_index(axes) * length, length).astype(sent)


def put_together(axes: Axes, op: ReduceOp, part: jax.Array, array: jax.Array) -> jax.Array:
    """The whole reduction of `array`, on every device, of the parts that were reduced over the workers."""
    devices = lax.psum(1, axes)
    if devices == 1:
        return part
    if op is Average and jnp.issubdtype(part.dtype, jnp.integer):
        part = part // devices
    whole = lax.all_gather(part.astype(array.dtype), axes, tiled=True)
    return whole[: array.size].reshape(array.shape)
