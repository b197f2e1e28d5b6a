"""Checks before the job: do the cores and GPUs that the variables ask for suffice on this host?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from .affinity import assign
from .environment import Environment
from .failure import LaunchError
from .finding import Finding, fail, note, ok
from .gpus import visible_gpu
from .lanes import lanes


def check_placement(environment: Environment, workers: int, servers: int) -> Iterator[Finding]:
    """One finding about the cores of so many workers and servers of this host, and one about GPUs that are missing."""
    try:
        plan = assign(environment, workers, servers)
        if servers:
            lanes(servers, environment, plan.of_servers)
        usable = len(os.sched_getaffinity(0))
        pinned = "pinned" if plan.pinned else "not pinned"
        many = f": more than one worker per core ({workers}), they will share" if workers > usable else ""
        yield (note if many else ok)("cores", f"{usable} usable, workers are {pinned}{many}")
    except LaunchError as error:
        yield fail("cores", str(error))
    try:
        if workers:
            visible_gpu(environment, 0, workers)
    except LaunchError as error:
        yield fail("gpus", str(error))
