"""Who a process is among those that a launcher has started, and what the launcher offers."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator, Mapping

from ..failure import LaunchError
from ..host_identity import this_host as this_host
from .exchange import Exchange


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What has started this process."""

    launcher: str  # for people: "torchrun", "Open MPI"
    rank: int
    size: int
    host: str  # processes with the same text are on one host
    exchange: Exchange

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """A LaunchError within says which rank has it, and on which host: the output of a launcher is that of all."""
        try:
            yield
        except LaunchError as error:
            text = f"rank {self.rank} of {self.size} (host {socket.gethostname()}): {error}"
            raise LaunchError(text, error.exit_code) from None


def number(variables: Mapping[str, str], name: str, launcher: str) -> int:
    """A whole number that the launcher must have set; LaunchError if it has not."""
    value = variables.get(name, "")
    try:
        return int(value, 10)
    except ValueError:
        raise LaunchError(f"{launcher} has started this process, but {name}={value!r}: expected a number") from None
