"""What the kernel says of a network interface: its addresses, and whether it is up."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import socket
import struct

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B
_GLOBAL = "00"  # of scopes, in /proc/net/if_inet6
_IFF_UP = 0x1
_IFF_RUNNING = 0x40


def is_up(name: str) -> bool:
    """Whether somebody has set it up; OSError if there is no such interface."""
    return bool(_flags(name) & _IFF_UP)


def carries(name: str) -> bool:
    """Whether it is up and connected; OSError if there is no such interface."""
    return _flags(name) & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING


def ipv4_address(name: str) -> str:
    """Its address, also while it is down; OSError if it has none."""
    return socket.inet_ntoa(_ask(name, _SIOCGIFADDR)[20:24])


def ipv4_mask(name: str) -> str:
    """The mask of its network; OSError if it has none."""
    return socket.inet_ntoa(_ask(name, _SIOCGIFNETMASK)[20:24])


def ipv6_addresses() -> list[str]:
    """The addresses of this host that other networks may reach, of all interfaces that carry."""
    found = []
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
            address, _, _, scope, _, name = line.split()
            if scope == _GLOBAL and carries(name):
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address)))
    return found


def _flags(name: str) -> int:
    return int(struct.unpack_from("H", _ask(name, _SIOCGIFFLAGS), 16)[0])


def _ask(name: str, what: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe, what, struct.pack("256s", name.encode()[:15]))
