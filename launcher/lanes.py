"""How many engine threads (lanes) the servers of a job on this host get."""

from __future__ import annotations

import os
from collections.abc import Collection

from .environment import Environment

_MOST = 4


def lanes(servers: int, environment: Environment, pinned: Collection[int] | None = None) -> int | None:
    """One for each core that is there for a server, at most four; None: as the server itself finds right.

    `pinned`: the cores of all servers together; None: they may run on all.

    Workers of the same host leave their tensors where they are, and wait while servers fold them from there: there all
    of the cores fold. Over the network (BYTEPS_SHM=0) half of the work is the kernel's, and the server's own rule, half
    of the cores, is the better one.
    """
    if environment.text("BYTEPS_SERVER_ENGINE_THREAD") is not None or not environment.flag("BYTEPS_SHM", default=True):
        return None
    cores = len(os.sched_getaffinity(0) if pinned is None else pinned)
    most = min(_MOST, cores // max(1, servers))
    return most if most > max(1, cores // 2) else None
