"""Cores for the library's own threads in pinned workers, and for the servers beside them.

The library has a thread in each worker that receives, sends and sums. Where there is room it gets cores of its own, on
the worker's NUMA node: of those that no worker has, or, where a worker has 8 physical cores or more, one of each 8 of
the worker's own, at most 4. Servers on the same host get as many again, from all workers together. With fewer cores a
core for that thread would cost the training more than it brings, and nothing is set apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from .topology import Core, Node, home

_CORES_OF_A_THREAD = 8  # physical cores of a worker, for one core of its I/O thread
_MOST = 4

Plan = list[Optional[frozenset[int]]]


def set_apart(
    nodes: Sequence[Node], workers: Sequence[frozenset[int] | None], servers: bool, take: bool
) -> tuple[Plan, Plan]:
    """The cores of the workers and those of their library's threads; None: they share the worker's.

    Args:
        nodes: what may be given out
        workers: what the workers have, each of one node
        servers: whether servers run on this host, for which something shall be left, too
        take: whether workers may be made smaller
    """
    taken = frozenset().union(*(cpus or () for cpus in workers))
    free = {node.number: [core for core in node.cores if not taken & set(core)] for node in nodes}
    homes = [home(nodes, cpus or ()) for cpus in workers]
    left: Plan = []
    apart: Plan = []
    for cpus, node in zip(workers, homes):
        own = [] if node is None or cpus is None else [core for core in node.cores if cpus & set(core)]
        wanted = min(_MOST, max(1, len(own) // _CORES_OF_A_THREAD))
        neighbours = sum(other is node for other in homes)
        spare = free[node.number] if node is not None else []
        # An equal part of what the node has over, of which servers have one, too.
        given = spare[: min(wanted, _equal_part(nodes, node, taken, neighbours + servers))]
        if given:
            del spare[: len(given)]
        elif take and len(own) >= _CORES_OF_A_THREAD:
            own, given = own[: -wanted * (1 + servers)], own[-wanted:]
            cpus = _cpus(own)
        left.append(cpus)
        apart.append(_cpus(given) if given else None)
    return left, apart


def _equal_part(nodes: Sequence[Node], node: Node | None, taken: frozenset[int], among: int) -> int:
    cores = [] if node is None else [core for core in node.cores if not taken & set(core)]
    return len(cores) // max(1, among)


def _cpus(cores: Sequence[Core]) -> frozenset[int]:
    return frozenset(cpu for core in cores for cpu in core)
