"""Which network interface is near a pinned worker: on a host with several cards that lead to the same network, the one
on the worker's own NUMA node, so that its bytes do not cross to another node first.

What the user has said about interface, address or RDMA device stays. Otherwise a worker meets the others through the
interface on the route to the coordinator. Another one takes its place only where it is at least as fast, is usable for
verbs if that one is, has an address in the same network, and where the system really sends what comes from that
address out by it: with two cards in one network that needs a routing rule for each, which hosts with several cards
have. For verbs no more is needed: a device is found by the address of its interface.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from .addresses import resolve
from .environment import Environment
from .environments.addresses import own_networks
from .topology import Card, Node, home, read_cards

if TYPE_CHECKING:
    import ipaddress

_CHOSEN = ("DMLC_INTERFACE", "HOROVOD_GLOO_IFACE", "DMLC_NODE_HOST", "BYTEPS_RDMA_DEVICE", "BYTEPS_RDMA_GID_INDEX")
_ROUTE_SECONDS = 5.0

# The interface by which the system sends to an address (from one of its own, if that is given); None: it has no route.
Route = Callable[[str, "str | None"], "str | None"]


def near_interface(
    environment: Environment,
    root: str | None,
    nodes: Sequence[Node],
    cpus: Collection[int] | None,
    cards: Sequence[Card] | None = None,
    route: Route | None = None,
) -> str | None:
    """The interface for a worker on these CPUs; None: the one that the library finds by itself.

    Args:
        environment: what the user has chosen
        root: the coordinator's address, or name; None: the job is on this host alone
        nodes: the NUMA nodes of this host
        cpus: of the worker; None: it is not pinned
        cards: of this host, instead of those that it has
        route: how this host sends, instead of `ip route get`
    """
    if cpus is None or root is None or len(nodes) < 2 or any(environment.text(name) for name in _CHOSEN):
        return None
    node = home(nodes, cpus)
    cards = read_cards() if cards is None else cards
    near = [card for card in cards if node is not None and card.node == node.number]
    if not near or len(cards) < 2:
        return None
    route = _route if route is None else route
    try:
        address = resolve(root)[1]
    except OSError:
        return None  # The library says so, and better.
    usual = next((card for card in cards if card.name == route(address, None)), None)
    if usual is None or usual.node is None or usual in near:
        return None
    network = _network(usual.name)
    for card in sorted(near, key=lambda card: -card.mbit):
        own = _network(card.name)
        if network is None or own is None or own.network != network.network:
            continue
        if card.mbit >= usual.mbit and card.rdma >= usual.rdma and route(address, str(own.ip)) == card.name:
            return card.name
    return None


def _network(interface: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    import ipaddress  # here: few hosts have several cards

    found = own_networks(interface)
    return ipaddress.ip_interface(found[0]) if found else None


def _route(address: str, source: str | None) -> str | None:
    program = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        return None
    words = [program, "-o", "route", "get", address, *(["from", source] if source is not None else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_ROUTE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r" dev (\S+)", done.stdout)
    return found[1] if found is not None else None
