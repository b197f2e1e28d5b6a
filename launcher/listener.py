"""The socket at which the coordinator of a job listens."""

from __future__ import annotations

import socket

from .addresses import Address, host_port
from .failure import LaunchError


def listen(address: Address, port: int) -> socket.socket:
    """The coordinator's listening socket at an address of this host; port 0: a free one.

    The launcher binds it and the coordinator inherits it, so no program can take the port in between, and a role
    that connects before the coordinator runs is not refused.
    """
    family, host = address
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise LaunchError(
            f"cannot listen at {host_port(host, port)}: {error.strerror}; another --port, or none for a free one", 1
        ) from None
    return listener
