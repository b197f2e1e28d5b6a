"""The address of this host on its route to the coordinator, and the interface that has it."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def _towards(host: str, port: int) -> str:
    """Nothing is sent to find out."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def own_address() -> str:
    """Numeric. Where there is no coordinator loopback's: IPv4's or, on a host without it, IPv6's."""
    root = os.environ.get("DMLC_PS_ROOT_URI")
    if root is not None:
        return _towards(root, int(os.environ.get("DMLC_PS_ROOT_PORT", "9")))
    try:
        return _towards("127.0.0.1", 9)
    except OSError:
        return _towards("::1", 9)


def interface_of(address: str) -> str | None:
    """The one that has this address of IPv6; None if there is none."""
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        words = line.split()
        if words[0] == wanted:
            return words[-1]
    return None
