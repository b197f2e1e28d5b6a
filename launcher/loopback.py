"""The address at which the processes of one host meet, and whether it can be reached."""

from __future__ import annotations

import socket

from .failure import LaunchError

LOOPBACK = "127.0.0.1"


def require_loopback() -> None:
    """LaunchError if this host cannot reach itself, as in a fresh network namespace. Members would try until
    BYTEPS_START_TIMEOUT, since a network may come up; this one does not by itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((LOOPBACK, 9))  # Sends nothing: asks the kernel for the route.
        except OSError as error:
            raise LaunchError(
                f"{LOOPBACK} cannot be reached: {error.strerror}: the loopback interface is down, where the processes "
                "of the job meet; as root: ip link set lo up",
                1,
            ) from None
