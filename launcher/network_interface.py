"""What the kernel says of a network interface: its IPv4 address, and whether it is up."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B
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


def _flags(name: str) -> int:
    return int(struct.unpack_from("H", _ask(name, _SIOCGIFFLAGS), 16)[0])


def _ask(name: str, what: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe, what, struct.pack("256s", name.encode()[:15]))
