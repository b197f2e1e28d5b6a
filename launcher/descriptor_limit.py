"""The limit of open files: a launcher of hundreds of processes needs some for each; its children have the user's."""

from __future__ import annotations

import contextlib
import errno
import resource

_given: tuple[int, int] | None = None  # what children get; None: what is in force


def raise_limit() -> None:
    """Raises this process's to what it may have; many systems give 1024 that programs can raise themselves."""
    global _given
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        _given = limits


def restore_limit() -> None:
    """In a child: what the user has given. Programs that use select() must not get descriptors above 1024."""
    if _given is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, _given)


def advice(error: OSError) -> str:
    """What to add to the text of an error, for people; empty where it is another one."""
    if error.errno != errno.EMFILE:
        return ""
    return f": raise the limit of open files, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]} here (ulimit -n)"
