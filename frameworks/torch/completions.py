"""Calls when operations have ended: for what cannot wait by itself, such as torch.futures.Future.

One thread waits for the operations in the order in which they were given to it. Where several are in flight, what ends
early is told when those before it have ended, too; its memory is free that much later, nothing waits for it longer.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Waitable(Protocol):
    """A handle."""

    def finish_on_host(self) -> Any:
        """Waits until the result is there, for whichever stream, and returns it; raises the operation's error."""


_Entry = tuple[Any, Callable[[Any, "BaseException | None"], None]]


class _Waiter:
    """The thread; made when it is first needed, and anew in a forked child."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="byteps completions", daemon=True).start()

    def _run(self) -> None:
        while True:
            handle, done = self.entries.get()
            try:
                output, error = handle.finish_on_host(), None
            except BaseException as raised:  # told to the waiting thread
                output, error = None, raised
            done(output, error)
            del handle, done, output, error  # until the next one comes, these hold no memory


_lock = threading.Lock()
_waiter: _Waiter | None = None


def when_done(handle: Waitable, done: Callable[[Any, BaseException | None], None]) -> None:
    """Calls `done` with the operation's output and None, or with None and its error, on a thread of BytePS's. It must
    not block and not raise."""
    global _waiter
    waiter = _waiter
    if waiter is None or waiter.process != os.getpid():
        with _lock:
            if _waiter is None or _waiter.process != os.getpid():
                _waiter = _Waiter()
            waiter = _waiter
    waiter.entries.put((handle, done))
