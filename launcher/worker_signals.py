"""SIGUSR1 and SIGUSR2 on their way to the workers: for them alone, and none ends a job by itself.

    signals = WorkerSignals()
    signals.watch()
    for number in signals.take(): ...

Slurm sends such a signal to all processes of a step: then it comes from each process in front of us, too, and is taken
once.
"""

from __future__ import annotations

import signal
import time

from .guardian import WORKER_SIGNALS

_ONE_SECONDS = 0.2  # Those of one kind that come within are one.


class WorkerSignals:
    """Those that have come to this process, in order."""

    def __init__(self) -> None:
        self._come: list[int] = []
        self._taken: dict[int, float] = {}

    def watch(self) -> None:
        """From now on they end this process no more."""
        for number in WORKER_SIGNALS:
            signal.signal(number, lambda number, _frame: self._come.append(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKER_SIGNALS)

    def take(self) -> list[int]:
        """What has come since the last call."""
        found = []
        while self._come:
            number, now = self._come.pop(0), time.monotonic()
            if now - self._taken.get(number, float("-inf")) >= _ONE_SECONDS:
                self._taken[number] = now
                found.append(number)
        return found
