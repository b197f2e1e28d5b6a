"""The address of this host on its route to the coordinator."""

from __future__ import annotations

import os
import socket


def own_address() -> str:
    """Numeric; nothing is sent to find out. Loopback where there is no coordinator."""
    root = os.environ.get("DMLC_PS_ROOT_URI", "127.0.0.1")
    port = int(os.environ.get("DMLC_PS_ROOT_PORT", "9"))
    family, kind, _, _, address = socket.getaddrinfo(root, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
