"""Everything that descends from a process, and its end.

A process that called become_subreaper() inherits the orphans among its descendants, so descendants() finds what a
worker started in the background, in a session of its own or with its parent long gone.

    become_subreaper()
    ...
    end_descendants(deadline=time.monotonic() + 5)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4  # of the kernel's linux/sched.h, in the field "flags" of /proc/PID/stat

# Loaded here, not after fork: the dynamic loader takes locks.
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"prctl({option})")


def become_subreaper() -> None:
    """From now on orphans among our descendants become our children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """In a new child: have the kernel kill us with SIGKILL when `parent`, which started us, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before the call above.
        os.kill(os.getpid(), signal.SIGKILL)


def end_with(caller: int) -> None:
    """Have the kernel send us SIGTERM when the thread of `caller` that started us ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.kill(caller, 0)
    except ProcessLookupError:  # It ended before the call above.
        os.kill(os.getpid(), signal.SIGTERM)


def _stat(pid: int | str) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; OSError if there is no such process."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The command, second field, is in parentheses and may contain anything.
        return stat.read().rpartition(b")")[2].split()


def exiting(pid: int) -> bool:
    """True from the moment when the end of a process has begun, also of one that has not been reaped.

    The kernel sets the mark before it closes the sockets of the process, and those before its parent can reap it.
    """
    try:
        fields = _stat(pid)
    except OSError:
        return False
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def parent(pid: int) -> int | None:
    """The process that has started `pid`, or inherited it; None if there is no such process."""
    try:
        return int(_stat(pid)[1])
    except OSError:
        return None


def is_ancestor(pid: int) -> bool:
    """Whether this process descends from `pid`, as far as the processes above it can be seen."""
    above: int | None = os.getppid()
    while above is not None and above not in (0, pid):
        above = parent(above)
    return above == pid


def _parents() -> dict[int, int]:
    """Parent of each process that is alive; zombies are left out."""
    parents = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208, some ten thousand names need no Path each
        if not entry.isdigit():
            continue
        try:
            fields = _stat(entry)
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            parents[int(entry)] = int(fields[1])
    return parents


def children(pid: int) -> set[int]:
    """The processes that `pid` has started, or inherited, and that are alive."""
    return {child for child, parent in _parents().items() if parent == pid}


def descendants(ancestor: int) -> set[int]:
    """The processes that descend from `ancestor` and are alive."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [ancestor]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def kill_descendants(spare: Collection[int] = ()) -> bool:
    """Sends SIGKILL to everything below this process but `spare`; True if there was anything.

    What a victim forks while we look is caught by calling again until the answer is False.
    """
    victims = descendants(os.getpid()).difference(spare)
    for pid in victims:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(victims)


def end_descendants(deadline: float, spare: Collection[int] = ()) -> bool:
    """Kills everything below this process but `spare`, and reaps it; False if something is left at the deadline.

    Reaps any child of the caller: for one that has no other children to wait for.
    """
    while kill_descendants(spare):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)  # There is no event for the end of a grandchild.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    return True
