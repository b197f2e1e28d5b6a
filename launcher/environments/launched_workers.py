"""The workers that one launcher has started on this host: they end when it does.

    workers = LaunchedWorkers(launcher, first, selector, say)
    workers.step(now)                     # at each event, and at workers.deadline

torchrun, mpirun or a daemon of Slurm that is killed by SIGKILL cannot end its workers, and they may be anywhere in the
user's code. So each gets SIGTERM here, and five seconds later SIGKILL. One of them is known; who the others are is seen
by their variables, which the launcher has given them (environments.detect): they are its children, and so may be
others. One that has written over its variables, as programs do that set their title, is not seen.

Threads: none; events come by the selector of the owner.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import selectors
import signal
import socket
import time
from collections.abc import Callable

from .. import process_tree
from ..failure import LaunchError
from ..system_calls import pidfd_open, pidfd_send_signal
from . import detect
from .launcher_process import LauncherProcess

_KILL_SECONDS = 5.0


class LaunchedWorkers:
    """Those of them that are alive."""

    def __init__(
        self, launcher: LauncherProcess, first: int, selector: selectors.BaseSelector, say: Callable[[str], None]
    ) -> None:
        """`first`: the process id of the worker that `launcher` tells of."""
        self._selector = selector
        self._say = say
        self._alive: dict[int, tuple[str, int]] = {}  # what it is called, and its descriptor, by process id
        self.deadline: float | None = None  # when those that are left are killed
        try:
            descriptor = pidfd_open(launcher.pid)
        except ProcessLookupError:
            descriptor = None
        except OSError:
            return  # Linux before 5.3, or a sandbox that knows no such descriptors: nobody can be watched.
        self._watch(first, lambda _: launcher.rank)
        for pid in process_tree.children(launcher.pid) - {first}:
            self._watch(pid, lambda pid: _rank(pid, launcher.launcher))
        if descriptor is None:
            self._launcher_ended()
        else:
            selector.register(descriptor, selectors.EVENT_READ, lambda: self._launcher_ended(descriptor))

    @property
    def alive(self) -> bool:
        """Whether any of them is."""
        return bool(self._alive)

    def step(self, now: float) -> None:
        """Kills those that are left at the deadline."""
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self._signal(signal.SIGKILL)

    def _watch(self, pid: int, rank_of: Callable[[int], int | None]) -> None:
        with contextlib.suppress(OSError):
            descriptor = pidfd_open(pid)
            # Looked at with the descriptor open: from then on the number is no other process's.
            rank = rank_of(pid)
            if rank is None:
                os.close(descriptor)
                return
            name = f"worker rank {rank} (host {socket.gethostname()}, pid {pid})"
            self._alive[pid] = (name, descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._ended(pid))

    def _ended(self, pid: int) -> None:
        _, descriptor = self._alive.pop(pid)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _launcher_ended(self, descriptor: int | None = None) -> None:
        if descriptor is not None:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        if self._alive:
            names = " and ".join(sorted(name for name, _ in self._alive.values()))
            self._say(f"what has started {names} is gone: ending {'them' if len(self._alive) > 1 else 'it'}")
            self._signal(signal.SIGTERM)
            self.deadline = time.monotonic() + _KILL_SECONDS

    def _signal(self, number: int) -> None:
        for _, descriptor in self._alive.values():
            with contextlib.suppress(OSError):
                pidfd_send_signal(descriptor, number)


def _rank(pid: int, launcher: str) -> int | None:
    """The rank of a process that a launcher of this kind has started; None if that is not to be seen."""
    with contextlib.suppress(OSError, LaunchError):
        words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        variables = dict(os.fsdecode(word).partition("=")[::2] for word in words if word)
        found = detect(variables)
        if found is not None and found.launcher == launcher:
            return found.rank
    return None
