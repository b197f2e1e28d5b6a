"""How fast tensors travel: what BytePS's users ask with get_pushpull_speed()."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

_INTERVAL = 10.0  # seconds


class SpeedMeter:
    """Sums up bytes over intervals of ten seconds; keeps the last samples until they are asked for."""

    def __init__(self, interval: float = _INTERVAL, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, float]] = deque(maxlen=1000)
        self._begin: float | None = None
        self._bytes = 0
        self.enabled = os.environ.get("BYTEPS_TELEMETRY_ON", "1") not in ("0", "false", "no", "off")

    def record(self, size: int) -> None:
        """An operation of so many bytes has ended."""
        if not self.enabled:
            return
        now = self._clock()
        with self._lock:
            if self._begin is None:
                self._begin = now
            self._bytes += size
            elapsed = now - self._begin
            if elapsed >= self._interval:
                self._samples.append((int(time.time() * 1000), self._bytes / elapsed / 1e6))
                self._begin, self._bytes = now, 0

    def take(self) -> tuple[int, float]:
        """The oldest sample, which is forgotten; (0, -5.0): there is none."""
        with self._lock:
            return self._samples.popleft() if self._samples else (0, -5.0)


SPEED = SpeedMeter()
