"""The cores, NUMA nodes and network cards of this host, as Linux shows them under /sys.

    read_nodes()        # [Node(0, [(0, 16), (1, 17), ...]), ...]: physical cores, each a tuple of its logical ones
    read_cards()        # [Card("eth0", node=1, mbit=100000, rdma=True), ...]

hwloc tells the same from the same files; tests compare the two. The files are read directly since they are on every
Linux, and hwloc's library would have to be installed on every host of a job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Collection, Iterable, Sequence

Core = tuple[int, ...]  # the logical CPUs of one physical core

SYSTEM = pathlib.Path("/sys")


@dataclasses.dataclass(frozen=True)
class Node:
    """A NUMA node with at least one core."""

    number: int
    cores: list[Core]

    @property
    def cpus(self) -> frozenset[int]:
        """Its logical CPUs."""
        return frozenset(cpu for core in self.cores for cpu in core)


@dataclasses.dataclass(frozen=True)
class Card:
    """A network interface of a physical device that is up."""

    name: str
    node: int | None  # the NUMA node that it is attached to; None: the system does not say
    mbit: int  # 0: its driver does not say
    rdma: bool  # verbs can use it: a port of an RDMA device that is active


def read_nodes(root: pathlib.Path = SYSTEM) -> list[Node]:
    """The nodes of the host whose /sys is at `root`; those without cores are left out. Empty: it tells nothing."""
    system = root / "devices" / "system"
    lists = {
        int(path.name[len("node") :]): _read_cpus(path / "cpulist") for path in (system / "node").glob("node[0-9]*")
    }
    if not any(lists.values()):  # No NUMA information: one node.
        lists = {0: _read_cpus(system / "cpu" / "online")}
    nodes = []
    for number, cpus in sorted(lists.items()):
        cores: dict[Core, None] = {}
        for cpu in sorted(cpus):
            siblings = _read_cpus(system / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list") | {cpu}
            cores[tuple(sorted(siblings & cpus))] = None
        if cores:
            nodes.append(Node(number, list(cores)))
    return nodes


def read_cards(root: pathlib.Path = SYSTEM) -> list[Card]:
    """The cards of the host whose /sys is at `root`."""
    with_verbs = _rdma_interfaces(root / "class" / "infiniband")
    cards = []
    for path in sorted((root / "class" / "net").glob("*")):
        # Bridges, tunnels and the like have no device.
        if not (path / "device").exists() or _text(path / "operstate") not in ("up", "unknown"):
            continue
        node = _number(path / "device" / "numa_node")
        mbit = _number(path / "speed")
        named = None if node is None or node < 0 else node
        cards.append(Card(path.name, named, max(0, mbit or 0), path.name in with_verbs))
    return cards


def usable(nodes: Sequence[Node], allowed: Collection[int], multithreaded: bool = True) -> list[Node]:
    """The nodes with what is `allowed` of them, as far as there is anything; of each core the first CPU alone, if not
    `multithreaded`. Without nodes: one of all that is allowed."""
    nodes = nodes or [Node(0, [(cpu,) for cpu in sorted(allowed)])]
    found = []
    for node in nodes:
        cores = [tuple(cpu for cpu in core if cpu in allowed) for core in node.cores]
        cores = [core if multithreaded else core[:1] for core in cores if core]
        if cores:
            found.append(Node(node.number, cores))
    return found


def home(nodes: Sequence[Node], cpus: Collection[int]) -> Node | None:
    """The node that has most of these CPUs; None if none has any."""
    best = max(nodes, key=lambda node: len(node.cpus & set(cpus)), default=None)
    return best if best is not None and best.cpus & set(cpus) else None


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list such as "0-3,8"; ValueError if it is none."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"not a list of cores: {text}")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """The list that parse_cpus() reads: `0-3,8`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _rdma_interfaces(folder: pathlib.Path) -> frozenset[str]:
    """The network interfaces of RDMA devices that have an active port."""
    found: set[str] = set()
    for device in folder.glob("*"):
        if any(_text(port).endswith("ACTIVE") for port in device.glob("ports/*/state")):
            found.update(path.name for path in (device / "device" / "net").glob("*"))
    return frozenset(found)


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # The rate of an interface that is down, for instance.
        return ""


def _number(path: pathlib.Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_text(path))
    return None


def _read_cpus(path: pathlib.Path) -> frozenset[int]:
    try:
        return parse_cpus(_text(path))
    except ValueError:
        return frozenset()


def allowed_cpus() -> frozenset[int]:
    """The CPUs that this process may use: a container has fewer than its host."""
    return frozenset(os.sched_getaffinity(0))
