"""The parameters that the servers keep in asynchronous training (docs/async.md), as NDArrays."""

from __future__ import annotations

from byteps import basics
from byteps.asynchronous import Beginning
from byteps.mxnet.ops import add_to_servers

import mxnet as mx


class ServerParameters:
    """The parameters of one optimizer."""

    def __init__(self) -> None:
        self._beginning = Beginning()

    def begin(self, weights: dict[str, mx.nd.NDArray]) -> None:
        """The servers get those of rank 0, for which all ranks wait. Those that have begun are left alone.

        Args:
            weights: by their names, the same on all ranks, in the same order.

        Raises:
            MXNetError, BytePSError: what the library says.
        """
        keys = list(weights)

        def values(indices: list[int]) -> list[mx.nd.NDArray]:
            own = [weights[keys[index]] for index in indices]
            return [one.copy() if basics.rank() == 0 else mx.nd.zeros_like(one) for one in own]

        def add(indices: list[int], values: list[mx.nd.NDArray]) -> None:
            for index, value in zip(indices, values):
                add_to_servers(value, self._beginning.prefix + keys[index], 0)
            for value in values:
                value.wait_to_read()

        self._beginning.begin(keys, values, add, basics.barrier)

    def add(self, key: str, weight: mx.nd.NDArray, before: mx.nd.NDArray, priority: int) -> None:
        """Makes of `weight`, which was `before` until the optimizer's own step, that of the servers; asynchronous."""
        change = weight - before
        add_to_servers(change, self._beginning.prefix + key, priority)
        weight[:] = change
