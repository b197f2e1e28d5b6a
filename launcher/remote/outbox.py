"""Bytes that wait until the other side of a pipe takes them: the sender does not wait."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import time
from typing import Callable

_PIECE = 64 * 1024


class Outbox:
    """The writing end of a pipe, served by a selector. Not for several threads.

    `on_broken` is called once, when there is no reader any more; what is sent afterwards is dropped.
    """

    def __init__(self, descriptor: int, selector: selectors.BaseSelector, on_broken: Callable[[], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._selector = selector
        self._on_broken = on_broken
        self._pieces: collections.deque[memoryview] = collections.deque()
        self._watching = False
        self._broken = False
        self.size = 0  # bytes that wait

    def send(self, data: bytes) -> None:
        """Sends now what can be sent now."""
        if self._broken:
            return
        self._pieces.append(memoryview(data))
        self.size += len(data)
        if not self._watching:
            self._flush()

    def close(self) -> None:
        """Forgets what waits. The descriptor stays open, and is its owner's."""
        self._pieces.clear()
        self.size = 0
        self._broken = True
        self._watch(False)

    def drain(self, deadline: float) -> None:
        """Waits until all is sent or it is the deadline (of time.monotonic())."""
        while self._pieces and not self._broken and time.monotonic() < deadline:
            self._flush()
            time.sleep(0.005 if self._pieces else 0)

    def _flush(self) -> None:
        try:
            while self._pieces:
                piece = self._pieces[0]
                sent = os.write(self._descriptor, piece[:_PIECE])
                self.size -= sent
                if sent == len(piece):
                    self._pieces.popleft()
                else:
                    self._pieces[0] = piece[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            self._on_broken()
            return
        self._watch(bool(self._pieces))

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._watching:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self._flush)
        if not wanted and self._watching:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._descriptor)
        self._watching = wanted
