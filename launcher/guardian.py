"""The process in front: what the user started, and what signals reach.

A launch consists of two processes, each of which covers the death of the other:

    guardian      the process that the user started: passes signals on, waits, exits with the supervisor's code
    supervisor    its child: starts and watches the processes of the job

If the guardian is killed, the supervisor reads the end of a pipe (the lifeline) and ends the job in order. If the
supervisor is killed, the kernel kills its children, and the guardian, who inherits all orphans below it, the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from typing import Callable

from . import process_tree
from .output import Printer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_SWEEP_SECONDS = 5.0


class Guardian:
    """Runs `body(lifeline)` in a child process and waits for it.

    `body` returns the exit code of the launch; `patience` is how many seconds it has to return after a signal.
    """

    def __init__(self, body: Callable[[int], int], patience: int, printer: Printer) -> None:
        self._body = body
        self._patience = patience
        self._printer = printer
        self._supervisor: int | None = None
        self._previous: dict[int, object] = {}

    def run(self) -> int:
        """Returns the exit code of `body`, or 128+n if signal n killed its process."""
        spare = process_tree.descendants(os.getpid())
        process_tree.become_subreaper()
        lifeline, ours = os.pipe()
        # Blocked over the fork: a signal in between would meet a handler without a supervisor.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        sys.stdout.flush()
        sys.stderr.flush()
        supervisor = os.fork()
        if supervisor == 0:
            os.close(ours)
            self._run_body(lifeline)
        os.close(lifeline)
        self._supervisor = supervisor
        self._install_handlers()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            status = os.waitpid(supervisor, 0)[1]
        finally:
            self._supervisor = None
            self._restore_handlers()
            os.close(ours)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        clean = process_tree.end_descendants(time.monotonic() + _SWEEP_SECONDS, spare)
        self._printer.say(
            f"the supervisor of the job was killed by signal {-code}; "
            + ("everything it had started was ended" if clean else "some of what it had started does not end")
        )
        return 128 - code

    def _run_body(self, lifeline: int) -> None:
        code = 1
        try:
            # A session of its own: a Ctrl-C reaches the guardian, who passes it on, and not both of us.
            os.setsid()
            code = self._body(lifeline)
        except BaseException:  # Nothing may return into the guardian's frames.
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _install_handlers(self) -> None:
        for number in SIGNALS:
            # What was ignored stays ignored: nohup, and background jobs of a script.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._pass_on)
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._lose_patience)

    def _restore_handlers(self) -> None:
        signal.alarm(0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: object) -> None:
        if self._supervisor is not None:
            with contextlib.suppress(ProcessLookupError):  # Its end was just seen, below us on the stack.
                os.kill(self._supervisor, number)
            signal.alarm(self._patience)

    def _lose_patience(self, _number: int, _frame: object) -> None:
        if self._supervisor is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor, signal.SIGKILL)
