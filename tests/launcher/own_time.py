"""Time that a job itself takes, on a machine that has more to do than cores.

    clock = OwnTime(lambda: [pid, ...])
    clock.wait_until(lambda: job_has_ended, 15.0, lambda: "what runs still")

While a process is ready to run and has no core, because others have them all, the job can do nothing about it. Linux
counts this time for each process; that of the process that has waited longest does not count here. On an idle machine
own time is the time of the clock.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterable

import pytest

_POLL_SECONDS = 0.05
_LONGEST = 120.0  # by the clock


class OwnTime:
    """Begins now. `processes`: those of the job that are alive."""

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._began = time.monotonic()
        self._before = {pid: _without_core(pid) for pid in processes()}
        self._waited: dict[int, float] = {}

    def __str__(self) -> str:
        return f"{self.seconds():.1f} s ({self._by_clock():.1f} s by the clock)"

    def seconds(self) -> float:
        """Since the beginning; at least 0."""
        for pid in self._processes():
            self._waited[pid] = max(self._waited.get(pid, 0.0), _without_core(pid) - self._before.get(pid, 0.0))
        return max(0.0, self._by_clock() - max(self._waited.values(), default=0.0))

    def wait_until(self, condition: Callable[[], object], seconds: float, complaint: Callable[[], str]) -> None:
        """Fails the test when it takes longer than these seconds since the beginning."""
        while not condition():
            if self.seconds() > seconds or self._by_clock() > _LONGEST:
                pytest.fail(f"after {self}: {complaint()}")
            time.sleep(_POLL_SECONDS)

    def _by_clock(self) -> float:
        return time.monotonic() - self._began


def _without_core(pid: int) -> float:
    """Seconds in which its first thread was ready to run and did not; 0 where it is gone, or Linux does not count."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0
