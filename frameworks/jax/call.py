"""One operation of the library, as JAX calls it: traced into a program, or at once."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from byteps.arrays import DTYPES
from byteps.jax import primitive, versions

import jax
import jax.numpy as jnp
from jax import lax

# A name outside of a program is an operand of this many bytes or a multiple, so that few lengths are compiled.
_NAME_UNIT = 64


class Call(NamedTuple):
    """What to do, known when a program is traced: it is compiled anew for each."""

    target: str  # of targets.py
    name: str
    argument: tuple[str, int]  # ("op", a ReduceOp) or ("root", a rank)
    priority: int
    more: tuple[tuple[str, int | tuple[int, ...]], ...] = ()  # further attributes of the handler
    shape: tuple[int, ...] | None = None  # of the result; None: the operand's, whose memory it may use

    def attributes(self) -> primitive.Attributes:
        """For the handler."""
        return (("name", self.name), self.argument, *self.more, ("priority", self.priority))

    def result(self, array: jax.Array) -> jax.ShapeDtypeStruct:
        """What the handler makes of `array`."""
        return jax.ShapeDtypeStruct(array.shape if self.shape is None else self.shape, array.dtype)


@partial(jax.jit, static_argnums=(2,))
def _outside(array: jax.Array, name: jax.Array, call: Call) -> jax.Array:
    """A program of one operation, whose name is an operand: compiled once for all names."""
    return primitive.call(call.target, call.result(array), (array, name), in_place=False, attributes=call.attributes())


def _padded(name: str) -> np.ndarray:
    text = name.encode()
    return np.frombuffer(text.ljust(-(-(len(text) + 1) // _NAME_UNIT) * _NAME_UNIT, b"\0"), np.uint8)


def device_number() -> jax.Array | None:
    """Which of the devices this is that the traced code runs on at once; None where it is a single one. Each has a
    tensor of its own, whose name ends with this number."""
    axes = versions.devices_mapped_over()
    return lax.axis_index(axes).astype(jnp.int32) if axes else None


def run(call: Call, array: jax.Array, device: jax.Array | None) -> jax.Array:
    """Runs `call` on `array`, on the device with this number. Raises ValueError; FloatingPointError under
    jax_debug_nans and jax_debug_infs."""
    primitive.refuse_to_run_again()
    if device is None and not versions.is_traced(array):
        return _run_outside(call, array)
    operands = (array,) if device is None else (array, device)
    in_place = call.shape is None
    return primitive.call(call.target, call.result(array), operands, in_place, call.attributes())


def check_parts(name: str, array: jax.Array, device: jax.Array | None) -> None:
    """Refuses an array that run() cannot send as a whole. Raises ValueError."""
    if device is None and not versions.is_traced(array) and not array.is_fully_replicated:
        raise ValueError(
            f"{name} lies in parts on {len(array.devices())} devices of this worker; outside of programs give an "
            "array of one device or with the same values on each, or call push_pull and broadcast inside shard_map"
        )


def _run_outside(call: Call, array: jax.Array) -> jax.Array:
    name, unnamed = _padded(call.name), call._replace(name="")
    several = len(array.devices()) > 1
    if several:
        check_parts(call.name, array, None)
    try:
        with versions.with_jit():  # it is a program, whatever the caller debugs
            made = _outside(array.addressable_data(0) if several else array, name, unnamed)
    except FloatingPointError:
        raise FloatingPointError(
            f'the result of "{call.name}" has a NaN or an infinity, which jax_debug_nans or jax_debug_infs forbids'
        ) from None
    # Of an array that is the same on all devices: of one, and back to all.
    return jax.device_put(made, array.sharding) if several else made


def known_array(name: str, value: Any) -> jax.Array:
    """`value` as an array of JAX, which has no 64 bits unless jax_enable_x64 is set.

    Raises:
        TypeError: an array or number of NumPy that has more bits than JAX keeps, and values beyond those of 32 bits:
            integers that would be others, floats that would be infinite. Other floats are rounded, as JAX does.
    """
    array = jnp.asarray(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.itemsize > array.dtype.itemsize:
        with np.errstate(all="ignore"):
            narrow = value.astype(array.dtype)
        lost = narrow != value if value.dtype.kind in "iu" else np.isfinite(value) & ~np.isfinite(narrow)
        if np.any(lost):
            raise TypeError(
                f"{name} is a {value.dtype} of NumPy with values beyond those of {array.dtype}, which JAX makes of it "
                "unless it is told otherwise: jax.config.update('jax_enable_x64', True)"
            )
    return array


def sent_array(name: str, value: Any) -> jax.Array:
    """`value` as an array that can be sent: inside shard_map that of one device. Raises TypeError."""
    array = versions.vary(known_array(name, value), versions.devices_checked())
    if array.dtype not in DTYPES:
        raise TypeError(f"{name} is a {array.dtype}; push_pull and broadcast take {', '.join(DTYPES)}")
    return array
