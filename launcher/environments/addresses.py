"""By which address the other hosts can reach this one, as far as their own addresses tell."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from ..failure import LaunchError
from ..network_interface import carries, ipv4_address, ipv4_mask

_LOOPBACK = "127.0.0.1"


def own_networks(interface: str | None = None) -> list[str]:
    """The IPv4 addresses of this host with their networks, `10.0.0.7/24`: of the interfaces that are up and connected
    (others keep their addresses, and nobody is reached by these), or of one, as it is, if it is named."""
    found = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            if name == interface or (interface is None and carries(name)):
                address = ipv4_address(name)
                if not address.startswith("127."):
                    found.append(f"{address}/{_ones(ipv4_mask(name))}")
    return found


def _ones(mask: str) -> int:
    """The length of the prefix that a mask such as 255.255.255.0 stands for."""
    return bin(int.from_bytes(socket.inet_aton(mask), "big")).count("1")


def meeting_address(
    own: Sequence[str], others: Sequence[Sequence[str]], interface: str | None = None, host: str | None = None
) -> str:
    """Which of the `own` networks' addresses the others know best: one in a network that most of them are in, too; the
    first if there is none. Loopback where there are no others. `host`: whose networks they are; None: this host's,
    whose name may stand for an address, too."""
    import ipaddress  # here: the hosts of a job only report their addresses, and start sooner without it

    if not others:
        return _LOOPBACK
    if not own:
        if host is not None:
            raise LaunchError(
                f"host {host}: no IPv4 address at which the others could reach it; see `ip -4 addr` there, and "
                "DMLC_INTERFACE if it is set"
            )
        host = socket.gethostname()
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            raise LaunchError(
                f"host {host} has no IPv4 address at which the others could reach it"
                + ("" if interface is None else f" on the interface {interface}")
                + f", and its name means none: {error.strerror}; name an interface by DMLC_INTERFACE"
            ) from None
    networks = [ipaddress.ip_interface(each) for each in own]

    def reached(index: int) -> int:
        network = networks[index].network
        return sum(any(ipaddress.ip_interface(each).ip in network for each in other) for other in others)

    # Bridges of containers have the same addresses everywhere: no host is reached by them.
    def is_shared(index: int) -> bool:
        return any(own[index] in other for other in others)

    best = max(range(len(own)), key=lambda index: (not is_shared(index), reached(index), -index))
    return str(networks[best].ip)
