"""Which CPU cores a worker gets.

    BYTEPS_NUMA_ON=0            nothing is pinned
    BYTEPS_VISIBLE_CPU_CORES    the cores by hand: one section per local rank, "0-3,8:4-7,12"
    otherwise                   each worker gets cores of one NUMA node of its own. Without a variable of this page this
                                happens only on hosts with several NUMA nodes, and never with fewer cores than workers

    BYTEPS_NUMA_DEFAULT_QUOTA   physical cores per worker; default: an equal share
    BYTEPS_NUMA_ROOT_QUOTA      physical cores of the last local rank; default: as the others
    BYTEPS_CPU_BLACKLIST        logical cores to leave alone, "0,1" or "0-1"; -1: none
    BYTEPS_MULTITHREADED_CPU=0  one hardware thread per physical core

Cores that the launcher itself may not use (a container's limits) are never given out.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Optional

from .environment import Environment
from .failure import LaunchError

Core = tuple[int, ...]  # the logical CPUs of one physical core
Cpus = Optional[frozenset[int]]

_PINNING = (
    "BYTEPS_NUMA_ON",
    "BYTEPS_NUMA_DEFAULT_QUOTA",
    "BYTEPS_NUMA_ROOT_QUOTA",
    "BYTEPS_CPU_BLACKLIST",
    "BYTEPS_MULTITHREADED_CPU",
)


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list such as "0-3,8"; ValueError if it is none."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"not a list of cores: {text}")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def assign(environment: Environment, workers: int) -> list[Cpus]:
    """The CPUs of each local rank; None where it is not pinned."""
    nowhere: list[Cpus] = [None] * workers
    if not environment.flag("BYTEPS_NUMA_ON", default=True):
        return nowhere
    allowed = frozenset(os.sched_getaffinity(0))
    sections = environment.text("BYTEPS_VISIBLE_CPU_CORES")
    if sections is not None:
        return _by_hand(sections, workers, allowed)
    nodes = _nodes(allowed - _blacklist(environment), environment.flag("BYTEPS_MULTITHREADED_CPU", default=True))
    asked = any(environment.text(name) is not None for name in _PINNING)
    default_quota = environment.integer("BYTEPS_NUMA_DEFAULT_QUOTA", minimum=1)
    root_quota = environment.integer("BYTEPS_NUMA_ROOT_QUOTA", minimum=1)
    if len(nodes) < 2 and not asked:
        return nowhere
    plan = share(nodes, workers, default_quota, root_quota)
    if plan is not None:
        return list(plan)
    if default_quota is None and root_quota is None:
        return nowhere  # Fewer cores than workers.
    raise LaunchError(
        f"BYTEPS_NUMA_DEFAULT_QUOTA={default_quota or 'unset'}, BYTEPS_NUMA_ROOT_QUOTA={root_quota or 'unset'}: "
        f"{workers} workers do not fit into NUMA nodes of {'+'.join(str(len(node)) for node in nodes)} physical cores"
    )


def chosen_by_hand(environment: Environment, workers: int) -> list[Cpus]:
    """The CPUs of each local rank of a host that is not looked at: those of BYTEPS_VISIBLE_CPU_CORES; None: what its
    topology says there."""
    sections = environment.text("BYTEPS_VISIBLE_CPU_CORES")
    if sections is None or not environment.flag("BYTEPS_NUMA_ON", default=True):
        return [None] * workers
    return _by_hand(sections, workers, None)


def leftover(environment: Environment, taken: Sequence[Cpus]) -> Cpus:
    """The cores that pinned workers leave to servers and coordinator, which then do not disturb them; None: any, where
    a worker is not pinned or nothing is left."""
    if not taken or any(cpus is None for cpus in taken):
        return None
    rest = frozenset(os.sched_getaffinity(0)) - _blacklist(environment)
    for cpus in taken:
        rest -= cpus or frozenset()
    return rest or None


def threads(cpus: Cpus, workers: int) -> int | None:
    """A sensible OMP_NUM_THREADS for one of `workers`: without it each would start a thread per core of the host.

    None: one unpinned worker has the host for itself, the default is right.
    """
    if cpus is None and workers == 1:
        return None
    usable = cpus if cpus is not None else frozenset(os.sched_getaffinity(0))
    physical = sum(len(node) for node in _nodes(usable, multithreaded=True))
    return max(1, physical if cpus is not None else physical // workers)


def share(
    nodes: Sequence[Sequence[Core]], workers: int, default_quota: int | None, root_quota: int | None
) -> list[frozenset[int]] | None:
    """Gives each worker cores of one node; None if they do not fit.

    `nodes` are the physical cores of each NUMA node. Quotas are in physical cores; the root is the last worker. A quota
    that is None is the largest equal share that fits.
    """
    if default_quota is None:
        others = workers if root_quota is None else workers - 1
        left = sum(map(len, nodes)) - (root_quota or 0)
        candidates = range(left // others, 0, -1) if others > 0 else range(1, 2)
    else:
        candidates = range(default_quota, default_quota + 1)
    for quota in candidates:
        plan = _place(nodes, [quota] * (workers - 1) + [root_quota or quota])
        if plan is not None:
            return plan
    return None


def _place(nodes: Sequence[Sequence[Core]], quotas: Sequence[int]) -> list[frozenset[int]] | None:
    """Spreads the workers evenly over the nodes, neighbours on the same one."""
    free = [len(node) for node in nodes]
    where = []
    for quota in reversed(quotas):  # The root, whose quota may be larger, first.
        node = max(range(len(nodes)), key=lambda index: free[index], default=None)
        if node is None or free[node] < quota:
            return None
        free[node] -= quota
        where.append((node, quota))
    order = sorted(where) if len(set(quotas)) == 1 else [*sorted(where[1:]), where[0]]
    taken = [0] * len(nodes)
    plan = []
    for node, quota in order:
        cores = nodes[node][taken[node] : taken[node] + quota]
        taken[node] += quota
        plan.append(frozenset(cpu for core in cores for cpu in core))
    return plan


def _by_hand(sections: str, workers: int, allowed: Cpus) -> list[Cpus]:
    parts = sections.split(":")
    if len(parts) < workers:
        raise LaunchError(
            f"BYTEPS_VISIBLE_CPU_CORES={sections}: {len(parts)} sections for {workers} workers; "
            "one section per local rank, separated by colons"
        )
    plan: list[Cpus] = []
    for part in parts[:workers]:
        try:
            cpus = parse_cpus(part)
        except ValueError:
            raise LaunchError(f"BYTEPS_VISIBLE_CPU_CORES={sections}: {part!r} is not a list of cores") from None
        if allowed is not None and not cpus <= allowed:
            raise LaunchError(f"BYTEPS_VISIBLE_CPU_CORES={sections}: not usable here: cores {sorted(cpus - allowed)}")
        plan.append(cpus)
    return plan


def _blacklist(environment: Environment) -> frozenset[int]:
    text = environment.text("BYTEPS_CPU_BLACKLIST")
    if text is None or text == "-1":
        return frozenset()
    try:
        return parse_cpus(text)
    except ValueError:
        raise LaunchError(f"BYTEPS_CPU_BLACKLIST={text}: not a list of cores") from None


def _nodes(allowed: frozenset[int], multithreaded: bool) -> list[list[Core]]:
    """The physical cores of each NUMA node, as far as they are allowed; nodes without any are left out."""
    system = pathlib.Path("/sys/devices/system")
    lists = [_read_cpus(path / "cpulist") for path in sorted((system / "node").glob("node[0-9]*"), key=_number)]
    if not any(lists):
        lists = [allowed]  # No NUMA information: one node.
    nodes = []
    for cpus in lists:
        cores: dict[Core, None] = {}
        for cpu in sorted(cpus & allowed):
            siblings = _read_cpus(system / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list") | {cpu}
            usable = sorted(siblings & allowed)
            cores[tuple(usable if multithreaded else usable[:1])] = None
        if cores:
            nodes.append(list(cores))
    return nodes


def _number(path: pathlib.Path) -> int:
    return int(path.name[len("node") :])


def _read_cpus(path: pathlib.Path) -> frozenset[int]:
    try:
        return parse_cpus(path.read_text().strip())
    except (OSError, ValueError):
        return frozenset()
