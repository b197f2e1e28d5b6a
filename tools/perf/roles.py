"""The processor time of the job's processes on this host, by role.

    clocks = RoleClocks()
    before = clocks.read()
    ...
    used = clocks.read() - before           # used.server, used.coordinator

Servers and coordinator are found by their environment; those of other hosts are not seen. The kernel's clock of a
process counts nanoseconds, of all its threads, those that have ended included.
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class RoleTimes:
    """CPU seconds."""

    worker: float = 0.0  # this process alone
    server: float = 0.0
    coordinator: float = 0.0

    def __add__(self, other: RoleTimes) -> RoleTimes:
        return RoleTimes(self.worker + other.worker, self.server + other.server, self.coordinator + other.coordinator)

    def __sub__(self, other: RoleTimes) -> RoleTimes:
        return RoleTimes(self.worker - other.worker, self.server - other.server, self.coordinator - other.coordinator)


def _clock_of(pid: int) -> int:
    # clock_getcpuclockid(3), which Python has for its own threads only.
    return (~pid << 3) | 2


def _read(clocks: list[int]) -> float:
    seconds = 0.0
    for clock in clocks:
        try:
            seconds += time.clock_gettime(clock)
        except OSError:  # the process has ended
            continue
    return seconds


def _namespaces(process: Path) -> list[str]:
    """Those that tell one host from another; containers, and the hosts of netlab, have their own."""
    return [str((process / "ns" / kind).readlink()) for kind in ("net", "ipc")]


class RoleClocks:
    """Made once, when all processes of the job are there."""

    def __init__(self) -> None:
        self._servers_together = 0
        own = _namespaces(Path("/proc/self"))
        self._clocks: dict[bytes, list[int]] = {b"server": [], b"scheduler": []}
        job = f"BYTEPS_JOB_ID={os.environ.get('BYTEPS_JOB_ID', '')}".encode()
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                together = job in environment and _namespaces(process) == own
            except OSError:
                continue  # gone, or another user's
            for role, clocks in self._clocks.items():
                if job in environment and b"DMLC_ROLE=" + role in environment:
                    clocks.append(_clock_of(int(process.name)))
                    self._servers_together += together and role == b"server"

    @property
    def servers(self) -> int:
        """How many of them can share memory with us."""
        return self._servers_together

    def read(self) -> RoleTimes:
        """Until now."""
        return RoleTimes(time.process_time(), _read(self._clocks[b"server"]), _read(self._clocks[b"scheduler"]))
