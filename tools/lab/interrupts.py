"""What ends us while the lab is set up and measured; from then on it is the supervisor's (launcher.supervisor).

with interruptible(lifeline):
    lab.add_host("server0")     # or whatever else may take a while; raises Interrupted
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator

from launcher.guardian import SIGNALS


class Interrupted(BaseException):
    """The signal `number` asks us to end; SIGIO: the guardian was killed."""

    def __init__(self, number: int) -> None:
        super().__init__("netlab itself was killed" if number == signal.SIGIO else signal.Signals(number).name)
        self.number = number


def _interrupt(number: int, _frame: object) -> None:
    # One is enough: what now takes things down is not to be interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGIO))
    raise Interrupted(number)


@contextlib.contextmanager
def interruptible(lifeline: int) -> Iterator[None]:
    """Signals, and the end of the pipe `lifeline`, raise Interrupted inside; afterwards signals are blocked, and wait
    for the code that unblocks them."""
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    for number in (*SIGNALS, signal.SIGIO):
        signal.signal(number, _interrupt)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, signal.SIG_DFL)
