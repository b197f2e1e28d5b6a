"""Which CPU cores the workers of this host get, which the library's threads in them, and which the servers.

    BYTEPS_NUMA_ON=0            nothing is pinned
    BYTEPS_VISIBLE_CPU_CORES    the workers' cores by hand: one section per local rank, "0-3,8:4-7,12"
    otherwise                   each worker gets cores of one NUMA node of its own. Without a variable of this page this
                                happens only on hosts with several NUMA nodes, and never with fewer cores than workers

    BYTEPS_NUMA_DEFAULT_QUOTA   physical cores per worker; default: an equal share
    BYTEPS_NUMA_ROOT_QUOTA      physical cores of the last local rank; default: as the others
    BYTEPS_CPU_BLACKLIST        logical cores to leave alone, "0,1" or "0-1"; -1: none
    BYTEPS_MULTITHREADED_CPU=0  one hardware thread per physical core

    BYTEPS_IO_CPU_CORES         cores of the library's threads: one section, or one per worker; default: set_apart.py
    BYTEPS_SERVER_CPU_CORES     cores of the servers: one section, or one per server; default: what is left over

Cores that the launcher itself may not use (a container's limits) are never given out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

from .environment import Environment
from .failure import LaunchError
from .set_apart import set_apart
from .topology import Core, Node, allowed_cpus, parse_cpus, read_nodes, usable

Cpus = Optional[frozenset[int]]

_PINNING = (
    "BYTEPS_NUMA_ON",
    "BYTEPS_NUMA_DEFAULT_QUOTA",
    "BYTEPS_NUMA_ROOT_QUOTA",
    "BYTEPS_CPU_BLACKLIST",
    "BYTEPS_MULTITHREADED_CPU",
)
_QUOTAS = ("BYTEPS_NUMA_DEFAULT_QUOTA", "BYTEPS_NUMA_ROOT_QUOTA")
_IO, _SERVERS, _WORKERS = "BYTEPS_IO_CPU_CORES", "BYTEPS_SERVER_CPU_CORES", "BYTEPS_VISIBLE_CPU_CORES"


def union_of(cores: Sequence[Cpus]) -> Cpus:
    """Those of all together; None if one of them is not pinned, or there is none."""
    pinned = [cpus for cpus in cores if cpus is not None]
    return frozenset[int]().union(*pinned) if pinned and len(pinned) == len(cores) else None


@dataclasses.dataclass(frozen=True)
class CorePlan:
    """Who runs where on this host; None: not pinned."""

    nodes: list[Node]  # all that may be used
    workers: list[Cpus]  # by local rank
    io: list[Cpus]  # of the library's threads, by local rank; None: where the worker runs
    servers: list[Cpus]
    coordinator: Cpus

    @property
    def of_servers(self) -> Cpus:
        """Those of all servers together."""
        return union_of(self.servers)

    @property
    def pinned(self) -> bool:
        """True if every worker has cores of its own."""
        return bool(self.workers) and all(cpus is not None for cpus in self.workers)


def assign(environment: Environment, workers: int, servers: int = 0, nodes: Sequence[Node] | None = None) -> CorePlan:
    """The plan for so many workers and servers of this host. LaunchError names the variable that cannot be followed.

    `nodes`: of another host than this one, all of whose cores may be used.
    """
    allowed = allowed_cpus() if nodes is None else frozenset().union(*(node.cpus for node in nodes))
    nodes = read_nodes() if nodes is None else nodes
    io: Sequence[Cpus] | None = _by_hand(environment, _IO, workers, "worker", allowed)
    by_hand = _by_hand(environment, _SERVERS, servers, "server", allowed)
    given = frozenset[int]().union(*(cpus or () for cpus in (*(io or ()), *(by_hand or ()))))
    free = allowed - _blacklist(environment) - given
    here = usable(nodes, allowed)
    plan = _workers(environment, workers, nodes, allowed, free)
    pinned = bool(plan) and all(cpus is not None for cpus in plan)
    if pinned and io is None and environment.text(_WORKERS) is None:
        # A worker for which so many cores were asked has so many.
        take = not any(environment.text(name) for name in _QUOTAS)
        multithreaded = environment.flag("BYTEPS_MULTITHREADED_CPU", default=True)
        plan, io = set_apart(usable(nodes, free, multithreaded), plan, servers > 0 and by_hand is None, take)
    rest = None
    if pinned:
        rest = free.difference(*(cpus or () for cpus in [*plan, *(io or ())])) or None
    return CorePlan(
        nodes=here,
        workers=list(plan),
        io=list(io) if io is not None else [None] * workers,
        servers=list(by_hand) if by_hand is not None else [rest] * servers,
        coordinator=rest,
    )


def chosen_by_hand(environment: Environment, workers: int) -> list[Cpus]:
    """The CPUs of each local rank of a host that is not looked at: those of BYTEPS_VISIBLE_CPU_CORES; None: what its
    topology says there."""
    if environment.text(_WORKERS) is None or not environment.flag("BYTEPS_NUMA_ON", default=True):
        return [None] * workers
    return list(_visible(environment, workers, None))


def servers_by_hand(environment: Environment, servers: int, here: bool = False) -> list[Cpus]:
    """The CPUs of each server: those of BYTEPS_SERVER_CPU_CORES; None: any. `here`: this host must have them."""
    allowed = allowed_cpus() if here else None
    chosen: Sequence[Cpus] | None = _by_hand(environment, _SERVERS, servers, "server", allowed)
    return [None] * servers if not chosen else list(chosen)


def of_task(environment: Environment, local_rank: int, workers: int) -> CorePlan:
    """As assign(), for one worker that another launcher has started, and may have bound to cores: only what the
    variables ask for is done. The others of this host, which may be bound to other cores, have the same plan."""
    named = chosen_by_hand(environment, workers)
    cpus = named[local_rank]
    if cpus is not None:
        missing = cpus - allowed_cpus()
        if missing:
            raise LaunchError(
                f"{_WORKERS}={environment.text(_WORKERS)}: local rank {local_rank} may not use {sorted(missing)}: its "
                "launcher has bound it to other cores"
            )
        return CorePlan(usable(read_nodes(), allowed_cpus()), named, [None] * workers, [], None)
    if any(environment.text(name) is not None for name in _PINNING):
        return assign(environment, workers)
    return CorePlan([], [None] * workers, [None] * workers, [], None)


def threads(plan: CorePlan, local_rank: int) -> int | None:
    """A sensible OMP_NUM_THREADS for a worker: without it each would start a thread per core of the host.

    None: one unpinned worker has the host for itself, the default is right.
    """
    cpus = plan.workers[local_rank]
    if cpus is None and len(plan.workers) == 1:
        return None
    physical = sum(len(node.cores) for node in (plan.nodes if cpus is None else usable(plan.nodes, cpus)))
    return max(1, physical if cpus is not None else physical // len(plan.workers))


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


def _workers(
    environment: Environment, workers: int, nodes: Sequence[Node], allowed: frozenset[int], free: frozenset[int]
) -> Sequence[Cpus]:
    nowhere: list[Cpus] = [None] * workers
    if workers == 0 or not environment.flag("BYTEPS_NUMA_ON", default=True):
        return nowhere
    if environment.text(_WORKERS) is not None:
        return _visible(environment, workers, allowed)
    cores = [node.cores for node in usable(nodes, free, environment.flag("BYTEPS_MULTITHREADED_CPU", default=True))]
    asked = any(environment.text(name) is not None for name in _PINNING)
    default_quota = environment.integer("BYTEPS_NUMA_DEFAULT_QUOTA", minimum=1)
    root_quota = environment.integer("BYTEPS_NUMA_ROOT_QUOTA", minimum=1)
    if len(cores) < 2 and not asked:
        return nowhere
    plan = share(cores, workers, default_quota, root_quota)
    if plan is not None:
        return plan
    if default_quota is None and root_quota is None:
        return nowhere  # Fewer cores than workers.
    raise LaunchError(
        f"BYTEPS_NUMA_DEFAULT_QUOTA={default_quota or 'unset'}, BYTEPS_NUMA_ROOT_QUOTA={root_quota or 'unset'}: "
        f"{workers} workers do not fit into NUMA nodes of {'+'.join(str(len(node)) for node in cores)} physical cores"
    )


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


def _visible(environment: Environment, workers: int, allowed: Cpus) -> Sequence[frozenset[int]]:
    text = environment.text(_WORKERS)
    if text is not None and workers > 1 and ":" not in text:
        raise LaunchError(
            f"{_WORKERS}={text}: 1 sections for {workers} workers; one section per worker, separated by colons"
        )
    return _by_hand(environment, _WORKERS, workers, "worker", allowed) or []


def _by_hand(
    environment: Environment, name: str, count: int, of: str, allowed: Cpus
) -> Sequence[frozenset[int]] | None:
    """The sections of a variable for `count` processes, one for all or one each; None if it is unset."""
    text = environment.text(name)
    if text is None:
        return None
    parts = text.split(":")
    if 1 < len(parts) < count:
        raise LaunchError(
            f"{name}={text}: {len(parts)} sections for {count} {of}s; one section per {of}, separated by colons"
        )
    plan = []
    for part in (parts * count if len(parts) == 1 else parts)[:count]:
        try:
            cpus = parse_cpus(part)
        except ValueError:
            raise LaunchError(f"{name}={text}: {part!r} is not a list of cores") from None
        if allowed is not None and not cpus <= allowed:
            raise LaunchError(f"{name}={text}: not usable here: cores {sorted(cpus - allowed)}")
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
