"""Calls when operations have ended: for what cannot wait by itself, such as torch.futures.Future.

Each operation is waited for by a thread of its own, so a call may block, even on a future that another of these threads
completes: users' callbacks on futures do. Threads that have nothing to wait for are kept for the next operations.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

# So many threads are kept while nothing is in flight.
_MOST_IDLE = 4


class Waitable(Protocol):
    """A handle."""

    def finish_on_host(self) -> Any:
        """Waits until the result is there, for whichever stream, and returns it; raises the operation's error."""


_Entry = tuple[Any, Callable[[Any, "BaseException | None"], None]]


class _Waiters:
    """The threads; made when they are first needed, and anew in a forked child."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # threads for which no entry is on its way

    def add(self, entry: _Entry) -> None:
        with self._lock:
            starts = self._idle == 0
            if not starts:
                self._idle -= 1
        if starts:
            threading.Thread(target=self._run, name="byteps completions", daemon=True).start()
        self._entries.put(entry)

    def _run(self) -> None:
        while True:
            handle, done = self._entries.get()
            try:
                output, error = handle.finish_on_host(), None
            except BaseException as raised:  # told to `done`
                output, error = None, raised
            done(output, error)
            del handle, done, output, error  # until the next one comes, these hold no memory
            with self._lock:
                if self._idle >= _MOST_IDLE:
                    return
                self._idle += 1


_lock = threading.Lock()
_waiters: _Waiters | None = None


def when_done(handle: Waitable, done: Callable[[Any, BaseException | None], None]) -> None:
    """Calls `done` with the operation's output and None, or with None and its error, on a thread of BytePS's. It may
    block, and must not raise."""
    global _waiters
    waiters = _waiters
    if waiters is None or waiters.process != os.getpid():
        with _lock:
            if _waiters is None or _waiters.process != os.getpid():
                _waiters = _Waiters()
            waiters = _waiters
    waiters.add((handle, done))
