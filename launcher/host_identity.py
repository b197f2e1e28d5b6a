"""What tells this host from others, by whatever name each is called."""

from __future__ import annotations

import os
import pathlib
import socket


def this_host() -> str:
    """A text that processes of this host share, and those of others, or of another container, do not."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = ",".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "ipc", "uts"))  # noqa: PTH115
    return f"{socket.gethostname()} {boot} {spaces}"
