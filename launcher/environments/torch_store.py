"""The store of torchrun: a TCPStore at MASTER_ADDR:MASTER_PORT, held by the agent of the first host."""

from __future__ import annotations

import datetime
from typing import Any

from ..failure import LaunchError

_CONNECT_SECONDS = 60


class TorchStore:
    """See exchange.Lasting. Its entries outlive restarts of the workers."""

    def __init__(self, host: str, port: int, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._where = f"{host}:{port}"
        self._address = (host, port)
        self._store: Any = None

    def set(self, key: str, value: str) -> None:
        """Replaces the value of a key."""
        self._open().set(key, value)

    def get(self, key: str) -> str | None:
        """The value of a key, or None."""
        store = self._open()
        return store.get(key).decode() if store.check([key]) else None

    def remove(self, key: str) -> None:
        """Removes a key, if it is there."""
        self._open().delete_key(key)

    def close(self) -> None:
        """Closes the connection."""
        self._store = None

    def _open(self) -> Any:
        if self._store is None:
            try:
                from torch.distributed import PrefixStore, TCPStore
            except ImportError:
                raise LaunchError("torchrun has started this process, but it cannot import torch") from None
            try:
                timeout = datetime.timedelta(seconds=_CONNECT_SECONDS)
                own = TCPStore(self._address[0], self._address[1], is_master=False, timeout=timeout)
            except Exception as error:  # torch has no class of its own for it
                raise LaunchError(f"the store of torchrun at {self._where} does not answer: {error}") from None
            self._store = PrefixStore("byteps", own)
        return self._store
