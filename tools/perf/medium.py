"""What carries the tensors in the end.

    medium(bps.info(), servers_here=2)          # "local", "shm", "tcp", "verbs", ...

The library names the network, but where both ends are on one host they meet in shared memory, unless BYTEPS_SHM says
no.
"""

from __future__ import annotations

import os
from typing import Any

_NO = ("0", "false", "no", "off")


def medium(info: Any, servers_here: int) -> str:
    """`info`: of the session; `servers_here`: how many of the servers are on this host."""
    if info.size == 1 and info.num_servers == 0:
        return "alone"
    if info.num_servers == 0:
        return "local"
    network = info.transport.split(" ")[0]
    shared = os.environ.get("BYTEPS_SHM", "1").strip().lower() not in _NO
    return "shm" if shared and servers_here >= info.num_servers else network
