"""Ctrl-C in a process that waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def interrupted() -> Iterator[None]:
    """Sends SIGINT to this process a little later; KeyboardInterrupt must then come at once. What the block waits for
    takes a minute and more, or comes after the block alone."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.5, send)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()
    assert time.monotonic() - sent[0] < 30, "at once, on a loaded machine too"
