"""Who a process is among those that a launcher has started, and what the launcher offers."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
from collections.abc import Mapping

from ..failure import LaunchError
from .exchange import Exchange


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What has started this process."""

    launcher: str  # for people: "torchrun", "Open MPI"
    rank: int
    size: int
    host: str  # processes with the same text are on one host
    exchange: Exchange


def number(variables: Mapping[str, str], name: str, launcher: str) -> int:
    """A whole number that the launcher must have set; LaunchError if it has not."""
    value = variables.get(name, "")
    try:
        return int(value, 10)
    except ValueError:
        raise LaunchError(f"{launcher} has started this process, but {name}={value!r}: expected a number") from None


def this_host() -> str:
    """A text that processes of this host share, and those of others, or of another container, do not."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = ",".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "ipc", "uts"))  # noqa: PTH115
    return f"{socket.gethostname()} {boot} {spaces}"
