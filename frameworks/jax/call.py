"""One operation of the library, as JAX calls it: traced into a program, or at once."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from byteps.jax import versions

import jax
import jax.numpy as jnp
from jax import lax

# A name outside of a program is an operand of this many bytes or a multiple, so that few lengths are compiled.
_NAME_UNIT = 64

_SENT = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
)


class Call(NamedTuple):
    """What to do, known when a program is traced: it is compiled anew for each."""

    target: str  # of targets.py
    name: str
    argument: tuple[str, int]  # ("op", a ReduceOp) or ("root", a rank)
    priority: int

    def attributes(self, name: str) -> dict[str, Any]:
        """For the handler."""
        key, value = self.argument
        return {"name": name, key: np.int64(value), "priority": np.int64(self.priority)}


@partial(jax.jit, static_argnums=(2, 3, 4))
def _outside(array: jax.Array, name: jax.Array, target: str, argument: tuple[str, int], priority: int) -> jax.Array:
    """A program of one operation, whose name is an operand: compiled once for all names."""
    call = Call(target, "", argument, priority)
    shape = jax.ShapeDtypeStruct(array.shape, array.dtype)
    return versions.call(target, shape, (array, name), in_place=False, **call.attributes(""))


def _padded(name: str) -> np.ndarray:
    text = name.encode()
    return np.frombuffer(text.ljust(-(-(len(text) + 1) // _NAME_UNIT) * _NAME_UNIT, b"\0"), np.uint8)


def device_number() -> jax.Array | None:
    """Which of the devices this is that the traced code runs on at once; None where it is a single one. Each has a
    tensor of its own, whose name ends with this number."""
    axes = versions.devices_mapped_over()
    return lax.axis_index(axes).astype(jnp.int32) if axes else None


def run(call: Call, array: jax.Array, device: jax.Array | None) -> jax.Array:
    """Runs `call` on `array`, on the device with this number."""
    if device is None and not versions.is_traced(array):
        return _outside(array, _padded(call.name), call.target, call.argument, call.priority)
    operands = (array,) if device is None else (array, device)
    shape = jax.ShapeDtypeStruct(array.shape, array.dtype)
    return versions.call(call.target, shape, operands, in_place=True, **call.attributes(call.name))


def sent_array(name: str, value: Any) -> jax.Array:
    """`value` as an array that can be sent. Raises TypeError."""
    array = jnp.asarray(value)
    if array.dtype not in _SENT:
        raise TypeError(f"{name} is a {array.dtype}; push_pull and broadcast take {', '.join(_SENT)}")
    return array
