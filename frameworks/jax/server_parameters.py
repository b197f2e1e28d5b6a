"""The parameters that the servers keep in asynchronous training (docs/async.md), as pytrees of JAX."""

from __future__ import annotations

from typing import Any

from byteps import basics
from byteps.asynchronous import Beginning
from byteps.jax import versions
from byteps.jax.call import device_number
from byteps.jax.names import leaf_names
from byteps.jax.ops import add_to_servers
from byteps.session import current_session

import jax
import jax.numpy as jnp


class ServerParameters:
    """An optimizer whose updates lead to the parameters of the servers.

    Args:
        inner: the optimizer whose updates are added to them.
        name: before the names of the parameters.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name
        self._beginning = Beginning()
        self._session: Any = None  # whose servers have them

    def init(self, params: Any) -> Any:
        """The optimizer's own state. The servers get the parameters of rank 0, for which all ranks wait; those that
        they have already, from an earlier call in this session, are left alone.

        Raises:
            ValueError: inside of a program.
            XlaRuntimeError, BytePSError: what the library says.
        """
        names, leaves, _ = leaf_names(self._name, params)
        if any(versions.is_traced(leaf) for leaf in leaves):
            raise ValueError(
                "init() was called inside of a program; asynchronous training (BYTEPS_ENABLE_ASYNC=1) begins with the "
                "values of the parameters: call it outside of jit"
            )

        def values(indices: list[int]) -> list[Any]:
            return [leaves[i] if basics.rank() == 0 else jnp.zeros_like(leaves[i]) for i in indices]

        def add(indices: list[int], values: list[Any]) -> None:
            added = [add_to_servers(names[index], value, -index) for index, value in zip(indices, values)]
            jax.block_until_ready(added)

        self._beginning.begin(names, values, add, basics.barrier)
        self._session = current_session()
        return self._inner.init(params)

    def update(self, gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Adds the optimizer's own updates to the parameters of the servers; the updates that lead to these.

        Raises:
            ValueError: no `params`; or init() was not called in this session.
            NotImplementedError: inside of shard_map or pmap.
        """
        if params is None:
            raise ValueError("asynchronous training (BYTEPS_ENABLE_ASYNC=1) needs update(gradients, state, params)")
        if self._session is not current_session():
            raise ValueError(
                "the servers do not have the parameters: in asynchronous training (BYTEPS_ENABLE_ASYNC=1) call the "
                "optimizer's init(params) after byteps.jax.init(), in each session"
            )
        if device_number() is not None:
            raise NotImplementedError("asynchronous training (BYTEPS_ENABLE_ASYNC=1) is for one device per process")
        updates, state = self._inner.update(gradients, state, params, **extra)
        names, leaves, structure = leaf_names(self._name, params)
        changes = structure.flatten_up_to(updates)
        led = [
            add_to_servers(name, jnp.asarray(change, leaf.dtype), -index) - leaf
            for index, (name, change, leaf) in enumerate(zip(names, changes, leaves))
        ]
        return jax.tree_util.tree_unflatten(structure, led), state
