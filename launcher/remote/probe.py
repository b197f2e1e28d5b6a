"""Whether hosts reach each other, and how fast: what agents measure for `bpslaunch --check --hosts`."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import select
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

from ..network_interface import ipv4_address

_CONNECT_SECONDS = 3.0  # of all connections together; less than what bpslaunch takes for silence
_PIECE = 1 << 20


class ProbeSink:
    """A port that takes whatever comes, to be measured by other hosts."""

    def __init__(self, address: tuple[int, str], selector: selectors.BaseSelector) -> None:
        """Listens at `address`, on a free port; OSError."""
        self._selector = selector
        self._listener = socket.socket(address[0], socket.SOCK_STREAM)
        self._listener.bind((address[1], 0))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection = self._listener.accept()[0]
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._take(connection))

    def _take(self, connection: socket.socket) -> None:
        try:
            over = not connection.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            over = True
        if over:
            self._selector.unregister(connection)
            connection.close()


def connect_to_all(targets: Sequence[tuple[str, int]]) -> list[tuple[float, str | None]]:
    """For each address and port: the seconds until it was connected, and what went wrong (None: nothing)."""
    started = time.monotonic()
    results: list[tuple[float, str | None]] = [(_CONNECT_SECONDS, "no answer")] * len(targets)
    poll = select.poll()
    waiting: dict[int, tuple[int, socket.socket]] = {}
    for index, (address, port) in enumerate(targets):
        probe = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        probe.setblocking(False)
        error = probe.connect_ex((address, port))
        if error in (0, errno.EINPROGRESS):
            waiting[probe.fileno()] = (index, probe)
            poll.register(probe, select.POLLOUT)
        else:
            results[index] = (0.0, os.strerror(error))
            probe.close()
    while waiting and (left := started + _CONNECT_SECONDS - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            index, probe = waiting.pop(descriptor)
            poll.unregister(descriptor)
            error = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            results[index] = (time.monotonic() - started, os.strerror(error) if error else None)
            probe.close()
    for _, probe in waiting.values():
        probe.close()
    return results


def bytes_per_second(address: str, port: int, seconds: float) -> float:
    """What one connection carries; OSError."""
    data = memoryview(bytes(_PIECE))
    with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as connection:
        started = time.monotonic()
        sent = 0
        while time.monotonic() - started < seconds:
            sent += connection.send(data)
        return sent / (time.monotonic() - started)


def own_interface(address: str) -> dict[str, Any]:
    """The network interface on the route to `address`: its name, and its rate in Mbit/s where the system tells it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # Sends nothing: asks the kernel for the route.
        own = probe.getsockname()[0]
    name = _interface_of(own)
    rate = None
    with contextlib.suppress(OSError, ValueError):
        rate = int(pathlib.Path(f"/sys/class/net/{name}/speed").read_text())
    return {"address": own, "interface": name, "mbit": rate if rate is not None and rate > 0 else None}


def _interface_of(address: str) -> str | None:
    """Which interface has this address; None if the system does not tell."""
    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        with contextlib.suppress(OSError):
            # An address, and five more columns, of which the last is the name of the interface.
            for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
                words = line.split()
                if words[0] == wanted:
                    return words[-1]
        return None
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            if ipv4_address(name) == address:
                return name
    return None
