"""Runs a command beside the steps of tools/test.

    with SideProcess(["pytest", "tests"], root, log) as tests:
        ...                                  # takes its time
        status = tests.wait()

On leaving early, by Ctrl-C or an error, the command is asked to end, and is given the time to take down what it has
started.

A signal whose handler raises would leave behind what has just been started and is not known yet. So whatever starts a
process holds signals back until it is:

    with ExitStack() as stack:
        with stops_held_back():
            process = Popen(command, preexec_fn=let_stop)
            stack.callback(end, process, SIGTERM)
        ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Seconds that a command has to end after it was asked to.
PATIENCE = 60.0

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stops_held_back() -> Iterator[None]:
    """What asks this process to stop is heard at the end of this; by threads begun meanwhile, never."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_stop() -> None:
    """For a child before its exec: it can be stopped again, whatever is held back or ignored here."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a script's job in the background ignores it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def end(process: subprocess.Popen[Any], request: signal.Signals, patience: float = PATIENCE) -> None:
    """Asks a process to end, waits until it has, and kills it if it does not."""
    if process.poll() is None:
        process.send_signal(request)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class SideProcess:
    """A command that runs until it ends or is left. Entered where stops are held back until its exit is registered.

    Args:
        command: what to run
        root: folder to run it in
        log: file that takes its output

    Threads: one of its own, which notes when the command has ended.
    """

    def __init__(self, command: Sequence[str], root: Path, log: Path) -> None:
        self._command = list(command)
        self._root = root
        self.log = log
        self._started = time.monotonic()
        self._seconds = 0.0

    def __enter__(self) -> SideProcess:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            # Ctrl-C in the terminal reaches the runner alone, which then leaves and ends this one: a second request
            # would disturb it while it takes down what it has started.
            self._process = subprocess.Popen(
                self._command,
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=let_stop,
            )
        self._thread = threading.Thread(target=self._note_the_end, name="side process")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.running():
            self._thread.join()
            return
        try:
            end(self._process, signal.SIGINT)
        finally:
            # Whatever of its children is left in its session; and itself, if Ctrl-C has come again.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._thread.join()

    def running(self) -> bool:
        """Whether the command has not ended yet."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Waits for the command to end by itself; its exit status."""
        self._thread.join()
        return self._process.returncode

    def seconds(self) -> float:
        """How long an ended command has run."""
        return self._seconds

    def _note_the_end(self) -> None:
        self._process.wait()
        self._seconds = time.monotonic() - self._started
