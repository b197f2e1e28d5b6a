"""Names of hosts, and the address of each by which a job goes."""

from __future__ import annotations

import os
import socket

Address = tuple[int, str]  # family (socket.AF_INET, AF_INET6) and numeric address
_ANY_PORT = 9


def resolve(host: str) -> Address:
    """The address that the members take for `host`; OSError if the name is unknown.

    IPv4 comes first, whatever the resolver prefers; an address that this host has no route to comes last.
    (core/control/host_identity.h and server/process/listener.h go the same way.)
    """
    addresses = []
    for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        if family in (socket.AF_INET, socket.AF_INET6):
            addresses.append((int(family), str(address[0])))
    if not addresses:
        raise OSError(0, "no IP address has this name")
    return min(addresses, key=lambda each: (why_unreachable(each) is not None, each[0] != socket.AF_INET))


def why_unreachable(address: Address) -> str | None:
    """None if this host has a route to the address. Nothing is sent: the kernel is asked."""
    try:
        with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
            probe.connect((address[1], _ANY_PORT))
    except OSError as error:
        return error.strerror or os.strerror(error.errno or 0)
    return None


def is_loopback(host: str) -> bool:
    """True if `host` is an address of this machine that no other machine can reach."""
    import ipaddress  # here: most launches start without it

    try:
        return ipaddress.ip_address(resolve(host)[1]).is_loopback
    except (OSError, ValueError):
        return False


def host_port(host: str, port: int) -> str:
    """`127.0.0.1:9000`, `[::1]:9000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
