"""The store of torch.distributed: a TCPStore at MASTER_ADDR:MASTER_PORT. With torchrun the agent of the first host
holds it, else rank 0 itself."""

from __future__ import annotations

import contextlib
import datetime
import socket
import time
from typing import Any

from ..failure import LaunchError

_LEAST_SECONDS = 1.0  # for the store to answer, however late it is
_ATTEMPT_SECONDS = 5.0  # for one connection; a host that is not up yet does not refuse it
_PAUSE_SECONDS = 0.2  # until the next


def _until(deadline: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(_LEAST_SECONDS, deadline - time.monotonic()))


class OpenStore:
    """See exchange.Lasting. A store that somebody has opened, and keeps."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        """`store`: of torch.distributed, with nothing of others in it; None: open() makes it."""
        self._store = store
        self.rank = rank
        self.size = size

    def open(self, deadline: float) -> None:
        """It is there."""

    def set(self, key: str, value: str) -> None:
        """Replaces the value of a key."""
        self._store.set(key, value)

    def get(self, key: str) -> str | None:
        """The value of a key, or None."""
        return self._store.get(key).decode() if self._store.check([key]) else None

    def remove(self, key: str) -> None:
        """Removes a key, if it is there."""
        self._store.delete_key(key)

    def close(self) -> None:
        """Lets go of the connection."""
        self._store = None


class TorchStore(OpenStore):
    """See exchange.Lasting. Its entries outlive restarts of the workers.

    Args:
        launcher: for people.
        serves: whether this process is to hold the store, unless it does so already.
    """

    def __init__(self, launcher: str, host: str, port: int, rank: int, size: int, serves: bool = False) -> None:
        super().__init__(None, rank, size)
        self._launcher = launcher
        self._serves = serves
        self._where = f"{host}:{port}"
        self._address = (host, port)

    def open(self, deadline: float) -> None:
        """Connects to it. Who holds it may come as late as any other rank."""
        try:
            from torch.distributed import PrefixStore, TCPStore
        except ImportError:
            raise LaunchError(
                f"{self._launcher} has started this process, but it cannot import torch.distributed"
            ) from None
        if self._serves:
            _serve(*self._address, _until(deadline))
        self._wait_for_it(deadline)
        try:
            own = TCPStore(self._address[0], self._address[1], is_master=False, timeout=_until(deadline))
        except Exception as error:  # torch has no class of its own for it
            raise LaunchError(f"the store of {self._launcher} at {self._where} does not answer: {error}") from None
        self._store = PrefixStore("byteps", own)

    def _wait_for_it(self, deadline: float) -> None:
        """Until somebody listens there. In place of PyTorch, whose wait no signal of Python ends, and which lasts
        longer than it is told."""
        while True:
            left = deadline - time.monotonic()
            try:
                socket.create_connection(self._address, min(max(left, _LEAST_SECONDS), _ATTEMPT_SECONDS)).close()
                return
            except OSError as error:  # A name may come as late as the store.
                if left <= 0:
                    raise LaunchError(
                        f"the store of {self._launcher} at {self._where} does not answer: {error.strerror or error}"
                    ) from None
            time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))


# The stores that this process holds, as long as it lives: whoever has met by them may still use them for
# torch.distributed, whose init_process_group() shares them.
_HELD: list[Any] = []


def _serve(host: str, port: int, timeout: datetime.timedelta) -> None:
    """Holds a store there, unless something does so already."""
    from torch.distributed import TCPStore

    with contextlib.suppress(Exception):  # The program holds one, say; if it is not that, connecting to it fails.
        _HELD.append(TCPStore(host, port, is_master=True, timeout=timeout, wait_for_workers=False, multi_tenant=True))
