"""The address at which the processes of one host meet, and whether it can be reached."""

from __future__ import annotations

import socket

from .addresses import Address, is_loopback, resolve, why_unreachable
from .failure import LaunchError

_IPV4: Address = (socket.AF_INET, "127.0.0.1")
_IPV6: Address = (socket.AF_INET6, "::1")


def loopback(root: str | None) -> Address:
    """Where the processes of a whole job on this host meet: at `root` (DMLC_PS_ROOT_URI), if that is an address of
    loopback, else at IPv4's, or, on a host without it, at IPv6's. LaunchError if none can be reached."""
    candidates = [_IPV4, _IPV6]
    if root is not None and is_loopback(root):
        candidates.insert(0, resolve(root))
    for candidate in candidates:
        if why_unreachable(candidate) is None:
            return candidate
    raise _down(_IPV4)


def require_loopback(root: str) -> None:
    """LaunchError if this host cannot reach itself at `root`, a name or an address of loopback, as in a fresh network
    namespace. Members would try until BYTEPS_START_TIMEOUT, since a network may come up; this one does not by itself.
    """
    address = resolve(root)
    if why_unreachable(address) is None:
        return
    other = _IPV4 if address[0] == socket.AF_INET6 else _IPV6
    if why_unreachable(other) is not None:
        raise _down(address)
    kind = "IPv6" if address[0] == socket.AF_INET6 else "IPv4"
    raise LaunchError(
        f"{address[1]} cannot be reached: {why_unreachable(address)}: this host has no {kind} on its loopback "
        f"interface; set DMLC_PS_ROOT_URI={other[1]} for every role",
        1,
    )


def _down(address: Address) -> LaunchError:
    return LaunchError(
        f"{address[1]} cannot be reached: {why_unreachable(address)}: the loopback interface is down, where the "
        "processes of the job meet; as root: ip link set lo up",
        1,
    )
