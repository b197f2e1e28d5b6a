"""The process in front: what the user started, and what signals reach.

A launch consists of three processes, each of which covers the death of the others:

    guardian      the process that the user started: passes signals on, waits, exits with the supervisor's code
    keeper        its child: passes signals on, too; inherits all orphans of the job
    supervisor    the keeper's child: starts and watches the processes of the job

If the guardian is killed, the supervisor reads the end of a pipe (the lifeline) and ends the job in order. If the
supervisor is killed, the kernel kills its children, and the keeper the rest, and what the job has left in files; so
also if the guardian is killed with it. If the keeper is killed, the guardian inherits the orphans and does the same.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable

from . import process_tree
from .failure import LaunchError
from .output import Printer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_SWEEP_SECONDS = 5.0
# From the end of the workers to that of everything else; see supervisor.py.
_ENDING_SECONDS = 8


def guarded(
    supervise: Callable[[int], int],
    kill_after: float,
    printer: Printer,
    clean_up: Callable[[], None] | None = None,
) -> int:
    """Runs `supervise(lifeline)` under a Guardian; the exit code of the launch. A LaunchError is printed."""

    def body(lifeline: int) -> int:
        try:
            return supervise(lifeline)
        except LaunchError as error:
            printer.say(str(error))
            return error.exit_code
        finally:
            if clean_up is not None:
                clean_up()

    patience = math.ceil(kill_after) + _ENDING_SECONDS
    return Guardian(body, patience, printer, (lambda: None) if clean_up is None else clean_up).run()


class Guardian:
    """Runs `body(lifeline)` in a process of its own and waits for it.

    `body` returns the exit code of the launch; `patience` is how many seconds it has to return after a signal.
    `clean_up` is called after a violent end, by a process that has survived it; it may be called twice.
    """

    def __init__(
        self, body: Callable[[int], int], patience: int, printer: Printer, clean_up: Callable[[], None] = lambda: None
    ) -> None:
        self._body = body
        self._patience = patience
        self._printer = printer
        self._clean_up = clean_up

    def run(self) -> int:
        """Returns the exit code of `body`, or 128+n if signal n killed its process."""
        lifeline, ours = os.pipe()

        def keep() -> int:
            os.close(ours)
            # A session of its own: a Ctrl-C reaches the guardian, which passes it on, and not all of us.
            os.setsid()
            supervisor = _Guarded("supervisor", lambda: self._body(lifeline), None, self._printer, self._clean_up)
            return supervisor.run()

        keeper = _Guarded("keeper", keep, self._patience, self._printer, self._clean_up)
        try:
            return keeper.run(lambda: os.close(lifeline))
        finally:
            os.close(ours)


def _wait_for(child: int) -> int:
    """The status with which it ends."""
    if os.getpid() != 1:
        return os.waitpid(child, 0)[1]
    # Process 1 inherits all orphans of its pod or container, those of `kubectl exec` included.
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


class _Guarded:
    """A child process that runs a function, watched by the process that makes it.

    `patience`: how many seconds after a signal that was passed on the child is killed; None: it has all the time.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], int],
        patience: int | None,
        printer: Printer,
        clean_up: Callable[[], None],
    ) -> None:
        self._name = name
        self._body = body
        self._patience = patience
        self._printer = printer
        self._clean_up = clean_up
        self._pid: int | None = None
        self._previous: dict[int, object] = {}

    def run(self, in_parent: Callable[[], None] = lambda: None) -> int:
        """Its exit code, or 128+n if signal n killed it. Calls `in_parent` once the child exists."""
        spare = process_tree.descendants(os.getpid())
        process_tree.become_subreaper()
        # Blocked over the fork: a signal in between would meet a handler without a child.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            self._run_body()
        in_parent()
        self._pid = child
        self._install_handlers()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            status = _wait_for(child)
        finally:
            self._pid = None
            self._restore_handlers()
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        clean = process_tree.end_descendants(time.monotonic() + _SWEEP_SECONDS, spare)
        self._clean_up()
        self._printer.say(
            f"the {self._name} of the job was killed by signal {-code}; "
            + ("everything it had started was ended" if clean else "some of what it had started does not end")
        )
        return 128 - code

    def _run_body(self) -> None:
        code = 1
        try:
            code = self._body()
        except BaseException:  # Nothing may return into the frames of the parent.
            import traceback

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
        self._signal(number)
        if self._patience is not None:
            signal.alarm(self._patience)

    def _lose_patience(self, _number: int, _frame: object) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):  # Its end was just seen, below us on the stack.
                os.kill(self._pid, number)
