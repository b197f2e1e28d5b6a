"""How fast tensors travel: what BytePS's users ask with get_pushpull_speed()."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

_INTERVAL = 10.0  # seconds


class SpeedMeter:
    """Sums up bytes over intervals of ten seconds; keeps the last samples until they are asked for.

    Threads: any. record() is on the way of every operation, so it takes no lock: it appends to a deque, which is
    atomic, and sums up when an interval is over or many have come.
    """

    _MOST_SIZES = 1 << 16

    def __init__(self, interval: float = _INTERVAL, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, float]] = deque(maxlen=1000)
        self._sizes: deque[int] = deque()  # not yet in _bytes
        self._begin: float | None = None
        self._due = float("-inf")  # when record() must sum up
        self._bytes = 0
        self.enabled = os.environ.get("BYTEPS_TELEMETRY_ON", "1") not in ("0", "false", "no", "off")

    def record(self, size: int) -> None:
        """An operation of so many bytes has ended."""
        if not self.enabled:
            return
        sizes = self._sizes
        sizes.append(size)
        if self._clock() >= self._due or len(sizes) > self._MOST_SIZES:
            self._sum_up()

    def _sum_up(self) -> None:
        with self._lock:
            now = self._clock()
            if self._begin is None:
                self._begin = now
            # What others append meanwhile is counted next time.
            for _ in range(len(self._sizes)):
                self._bytes += self._sizes.popleft()
            elapsed = now - self._begin
            if elapsed >= self._interval:
                self._samples.append((int(time.time() * 1000), self._bytes / elapsed / 1e6))
                self._begin, self._bytes = now, 0
            self._due = self._begin + self._interval

    def take(self) -> tuple[int, float]:
        """The oldest sample, which is forgotten; (0, -5.0): there is none."""
        with self._lock:
            return self._samples.popleft() if self._samples else (0, -5.0)


SPEED = SpeedMeter()
