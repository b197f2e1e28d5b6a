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
    own = {network.partition("/")[0] for network in home.hello["networks"]}
    for link in links:
        seen = None if link.hello is None else link.hello.get("launcher_address")
        # A daemon behind a jump host sees the address of that. (The networks are those of IPv4 alone.)
        if seen and (":" in seen or seen in own):
            return str(seen)
    return meeting_address(home.hello["networks"], others)
