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
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from . import process_tree
from .failure import LaunchError
from .output import Printer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# What is for the workers, and ends nothing by itself: a batch system warns of the end of the time by one of them.
WORKER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)

_SWEEP_SECONDS = 5.0
# From the end of the workers to that of everything else; see supervisor.py.
_ENDING_SECONDS = 8


class KillAfter:
    """Seconds from SIGTERM to SIGKILL, where the supervisor learns of them after its guardian has begun."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, struct.calcsize("d"))  # with the processes that are forked from this one

    def set(self, seconds: float) -> None:
        """In the supervisor."""
        self._shared[:] = struct.pack("d", seconds)

    def get(self) -> float:
        """In the guardian; 0 until it is known."""
        return struct.unpack("d", self._shared[:])[0]


def guarded(
    supervise: Callable[[int], int],
    kill_after: float | KillAfter,
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

    def patience() -> int:
        return math.ceil(kill_after.get() if isinstance(kill_after, KillAfter) else kill_after) + _ENDING_SECONDS

    return Guardian(body, patience, printer, (lambda: None) if clean_up is None else clean_up).run()


class Guardian:
    """Runs `body(lifeline)` in a process of its own and waits for it.

    `body` returns the exit code of the launch; `patience` says how many seconds it has to return after a signal.
    `clean_up` is called at the end, by each process that is left; it may be called again.
    """

    def __init__(
        self,
        body: Callable[[int], int],
        patience: Callable[[], int],
        printer: Printer,
        clean_up: Callable[[], None] = lambda: None,
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
        patience: Callable[[], int] | None,
        printer: Printer,
        clean_up: Callable[[], None],
    ) -> None:
        self._name = name
        self._body = body
        self._patience = patience
        self._printer = printer
        self._clean_up = clean_up
        self._pid: int | None = None
        self._previous: dict[int, Any] = {}

    def run(self, in_parent: Callable[[], None] = lambda: None) -> int:
        """Its exit code, or 128+n if signal n killed it. Calls `in_parent` once the child exists."""
        spare = process_tree.descendants(os.getpid())
        process_tree.become_subreaper()
        # Blocked over the fork: a signal in between would meet a handler without a child.
        signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, *WORKER_SIGNALS))
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            self._run_body()
        in_parent()
        self._pid = child
        self._install_handlers()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, *WORKER_SIGNALS))
        try:
            status = _wait_for(child)
        finally:
            self._pid = None
            self._restore_handlers()
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            self._clean_up()  # It may have ended without coming to that.
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
        for number in (*SIGNALS, *WORKER_SIGNALS):
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
        if self._patience is not None and number in SIGNALS:
            signal.alarm(self._patience())

    def _lose_patience(self, _number: int, _frame: object) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):  # Its end was just seen, below us on the stack.
                os.kill(self._pid, number)
