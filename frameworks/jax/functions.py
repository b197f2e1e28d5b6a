"""Broadcast of parameters and of an optimizer's state: every worker starts with the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from byteps import _native
from byteps.arguments import root, tensor_name
from byteps.jax import versions
from byteps.jax.names import leaf_names
from byteps.session import Session, current_session

import jax
import jax.numpy as jnp

_CODES = {
    "uint8": _native.UINT8,
    "int8": _native.INT8,
    "int16": _native.INT16,
    "int32": _native.INT32,
    "int64": _native.INT64,
    "float16": _native.FLOAT16,
    "bfloat16": _native.BFLOAT16,
    "float32": _native.FLOAT32,
    "float64": _native.FLOAT64,
    "complex64": _native.COMPLEX64,
    "complex128": _native.COMPLEX128,
    "bool": _native.BOOL,
}


class _Leaf:
    """One leaf on its way."""

    def __init__(self, session: Session, name: str, value: Any, root_rank: int, is_root: bool) -> None:
        self._value = value
        self._is_root = is_root
        array = _host_array(name, value)
        self._result = array if is_root else np.empty_like(array)
        code = _CODES.get(array.dtype.name)
        shape: tuple[int, ...] = array.shape
        if code is None:  # uint32, float8: as bytes, which meet by their type
            name, code, shape = f"{name}.{array.dtype.name}", _native.UINT8, (math.prod(shape) * array.dtype.itemsize,)
        address = self._result.ctypes.data
        self._request = session.native.broadcast(name, code, shape, address, address, root_rank, self._result)

    def wait(self) -> Any:
        """The root's leaf, of the kind and at the place of the own one."""
        self._request.wait()
        return self._value if self._is_root else _like(self._value, self._result)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _host_array(name: str, value: Any) -> np.ndarray:
    if _is_key(value):
        value = jax.random.key_data(value)
    if not isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        raise TypeError(f"{name} is {value!r}, which is no array; broadcast_object sends any object")
    array = np.asarray(value, order="C")
    if array.dtype.hasobject:
        raise TypeError(f"{name} is an array of Python objects; broadcast_object sends those")
    return array


def _placed_like(value: jax.Array, array: np.ndarray) -> jax.Array:
    """`array` on the devices of `value`, committed to them only if that is, and with its weak type: what a program
    makes of an array depends on both, and the root goes on with its own one."""
    if versions.is_committed(value) or len(value.devices()) > 1:
        placed = jax.device_put(array, value.sharding)
    else:
        with jax.default_device(next(iter(value.devices()))):
            placed = jnp.asarray(array)
    # There is no public function that makes an array with a weak type; an update keeps that of what is updated.
    return jnp.zeros_like(value).at[...].set(placed) if value.weak_type else placed


def _like(value: Any, array: np.ndarray) -> Any:
    if _is_key(value):
        data = _placed_like(jax.random.key_data(value), array)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    if isinstance(value, jax.Array):
        return _placed_like(value, array)
    if isinstance(value, np.ndarray):
        return array
    return array[()] if isinstance(value, np.generic) else type(value)(array[()])


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str = "Parameter") -> Any:
    """The root's parameters, on every rank. Call it outside of jit, and go on with what it returns.

    Args:
        params: a pytree of the same structure, shapes and dtypes on all ranks. Its leaves are arrays of JAX (of any
            dtype, keys of random numbers included) or NumPy, or numbers.
        root_rank: whose values are sent.
        prefix: before the names of the leaves.

    Returns:
        A pytree of the same structure: leaves of the same kind, on the same devices (committed to them where they
        were), with the root's values.

    Raises:
        BytePSError: the ranks disagree about a leaf, a member is gone, a deadline.
        TypeError: a leaf of another kind.
        ValueError: before init(), or the root is not a rank.
    """
    session = current_session()
    root_rank = root(session, root_rank)
    is_root = session.native.info()["rank"] == root_rank
    names, leaves, structure = leaf_names(tensor_name(prefix), params)
    sent = [_Leaf(session, name, leaf, root_rank, is_root) for name, leaf in zip(names, leaves)]
    return jax.tree_util.tree_unflatten(structure, [leaf.wait() for leaf in sent])


def broadcast_optimizer_state(state: Any, root_rank: int = 0, prefix: str = "OptimizerState") -> Any:
    """The root's state of an optimizer, on every rank; as broadcast_parameters."""
    return broadcast_parameters(state, root_rank, prefix)
