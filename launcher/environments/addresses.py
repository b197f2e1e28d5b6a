"""By which address the other hosts can reach this one, as far as their own addresses tell."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Sequence

from ..failure import LaunchError

_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B
_LOOPBACK = "127.0.0.1"


def own_networks(interface: str | None = None) -> list[str]:
    """The IPv4 addresses of this host with their networks, `10.0.0.7/24`; of one interface, if it is named."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if interface is not None and name != interface:
                continue
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                address = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
                mask = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFNETMASK, request)[20:24])
                if not address.startswith("127."):
                    found.append(f"{address}/{_ones(mask)}")
    return found


def _ones(mask: str) -> int:
    """The length of the prefix that a mask such as 255.255.255.0 stands for."""
    return bin(int.from_bytes(socket.inet_aton(mask), "big")).count("1")


def meeting_address(own: Sequence[str], others: Sequence[Sequence[str]], interface: str | None = None) -> str:
    """Which of the `own` networks' addresses the others know best: one in a network that most of them are in, too; the
    first if there is none. Loopback where there are no others."""
    import ipaddress  # here: the hosts of a job only report their addresses, and start sooner without it

    if not others:
        return _LOOPBACK
    if not own:
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
