"""Signals to end, while the lab is set up and measured; from then on they are the supervisor's (launcher.supervisor).

with interruptible():
    lab.add_host("server0")     # or whatever else may take a while; raises Interrupted
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from launcher.guardian import SIGNALS


class Interrupted(BaseException):
    """The signal `number` asks us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _interrupt(number: int, _frame: object) -> None:
    # One is enough: what now takes things down is not to be interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    raise Interrupted(number)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Signals raise Interrupted inside; afterwards they are blocked, and wait for whoever unblocks them."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
