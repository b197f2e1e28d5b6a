"""By which address the other hosts of a job reach one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..addresses import is_loopback
from ..environments.addresses import meeting_address
from ..failure import LaunchError
from ..host_identity import this_host
from .host_list import parse_address
from .link import Link


def coordinator_point(home: Link, links: Sequence[Link], interface: str | None, scheduler_ip: str | None) -> str:
    """The address of the coordinator's host for the others: that of --scheduler-ip. A name says nothing of addresses
    there, neither that it has one on that host, nor that the others reach the one it has (Debian's 127.0.1.1)."""
    named = None if scheduler_ip is None else parse_address("--scheduler-ip", scheduler_ip)
    return named or meeting_point(home, links, interface)


def meeting_point(home: Link, links: Sequence[Link], interface: str | None) -> str:
    """The address of a host for the others: that of the interface, if one is named; else that by which ssh reaches it,
    or by which the others' ssh daemons see us, if it is this host; else one that they share a network with."""
    assert home.hello is not None
    others = [link.hello["networks"] for link in links if link.hello is not None and link is not home]
    if interface is not None:
        if not home.hello["networks"]:
            raise LaunchError(f"host {home.machine}: DMLC_INTERFACE={interface}: no such interface, or without address")
        return meeting_address(home.hello["networks"], others or [home.hello["networks"]])
    address = home.hello.get("address")
    # Of this host by another name ssh sees an address of loopback, which Debian's /etc/hosts gives to the own name.
    if address and not (others and is_loopback(address)):
        return str(address)
    own = {network.partition("/")[0] for network in home.hello["networks"]}
    for link in links:
        seen = None if link.hello is None else link.hello.get("launcher_address")
        # A daemon behind a jump host sees the address of that. (The networks are those of IPv4 alone.)
        if seen and (":" in seen or seen in own) and not is_loopback(seen):
            return str(seen)
    is_here = _is_here(home.hello.get("identity"))
    return meeting_address(home.hello["networks"], others, host=None if is_here else home.machine)


def _is_here(identity: str | None) -> bool:
    """Whether the host of this identity is the one where we run."""
    with contextlib.suppress(OSError):
        return identity == this_host()
    return False
