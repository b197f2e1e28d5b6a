"""Hosts whose ssh daemon, or that of a jump host, has turned a login away since many came at once: called again.

sshd drops connections at random once MaxStartups of them have not logged in yet (10:30:100), and all clients of a job
start together.
"""

from __future__ import annotations

import os

from .link import Link

# How long to wait before the second and the third call, in seconds: each host another time, so that not all come again.
_WAITS = ((0.3, 1.5), (1.5, 4.0))


def _random() -> float:
    """From 0 to 1. The module `random` takes a part of the time in which a job starts."""
    return int.from_bytes(os.urandom(4), "big") / (1 << 32)


class Redial:
    """Which hosts are to be called again, and when."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._waiting: list[tuple[float, Link]] = []

    def take(self, link: Link, now: float) -> float | None:
        """After how many seconds the host of a link that has ended is called again; None if it is not."""
        calls = self._calls.get(link.machine, 0)
        if calls >= len(_WAITS) or not link.was_turned_away:
            return None
        self._calls[link.machine] = calls + 1
        least, most = _WAITS[calls]
        wait = least + (most - least) * _random()
        self._waiting.append((now + wait, link))
        return wait

    @property
    def waiting(self) -> bool:
        """Whether a host is to be called again."""
        return bool(self._waiting)

    def next_call(self, otherwise: float) -> float:
        """When the next host is to be called."""
        return min((when for when, _ in self._waiting), default=otherwise)

    def due(self, now: float) -> list[Link]:
        """The old links of the hosts that are to be called now."""
        found = [link for when, link in self._waiting if when <= now]
        self._waiting = [(when, link) for when, link in self._waiting if when > now]
        return found
