"""By which address the other hosts of a job reach one of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..environments.addresses import meeting_address
from ..failure import LaunchError
from .link import Link


def meeting_point(home: Link, links: Sequence[Link], interface: str | None) -> str:
    """The address of a host for the others: that of the interface, if one is named; else that by which ssh reaches it,
    or by which the others' ssh daemons see us, if it is this host; else one that they share a network with."""
    assert home.hello is not None
    others = [link.hello["networks"] for link in links if link.hello is not None and link is not home]
    if interface is not None:
        if not home.hello["networks"]:
            raise LaunchError(f"host {home.machine}: DMLC_INTERFACE={interface}: no such interface, or without address")
        return meeting_address(home.hello["networks"], others or [home.hello["networks"]])
    if home.hello.get("address"):
        return str(home.hello["address"])
    for link in links:
        if link.hello is not None and link.hello.get("launcher_address"):
            return str(link.hello["launcher_address"])
    return meeting_address(home.hello["networks"], others)
