"""The parameters that the servers keep in asynchronous training (docs/async.md), as NDArrays."""

from __future__ import annotations

from typing import Any

from byteps import basics
from byteps.mxnet.ops import add_to_servers
from byteps.session import current_session

import mxnet as mx


class ServerParameters:
    """The parameters of one optimizer.

    Args:
        name: before the names of the parameters, the same on all ranks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun: set[str] = set()
        self._session: Any = None  # whose servers have them

    def begin(self, weights: dict[str, mx.nd.NDArray]) -> None:
        """The servers get those of rank 0, for which all ranks wait. Those that have begun are left alone.

        Args:
            weights: by their names, the same on all ranks.

        Raises:
            MXNetError, BytePSError: what the library says.
        """
        if self._session is not current_session():  # servers of another job have nothing of ours
            self._begun = set()
            self._session = current_session()
        fresh = {key: weight for key, weight in weights.items() if key not in self._begun}
        if not fresh:
            return
        first = current_session().native.info()["rank"] == 0
        sent = {key: weight.copy() if first else mx.nd.zeros_like(weight) for key, weight in fresh.items()}
        for key, value in sent.items():
            add_to_servers(value, f"{self._name}.{key}", 0)
        for value in sent.values():
            value.wait_to_read()
        basics.barrier(f"{self._name}.begin.{len(self._begun)}")
        self._begun.update(fresh)

    def add(self, key: str, weight: mx.nd.NDArray, before: mx.nd.NDArray, priority: int) -> None:
        """Makes of `weight`, which was `before` until the optimizer's own step, that of the servers; asynchronous."""
        change = weight - before
        add_to_servers(change, f"{self._name}.{key}", priority)
        weight[:] = change
