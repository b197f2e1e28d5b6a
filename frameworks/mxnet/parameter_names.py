"""Names of parameters as ranks compare them: Gluon's have numbers that depend on what else a process has made."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

# Names in an error.
_SHOWN = 8


def by_number(key: Any) -> list[Any]:
    """For sorting: "dense9" before "dense10"."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", str(key)))]


def unnumbered(name: str) -> str:
    """The name without what depends on what else a process has made: "net_dense_weight" of "net0_dense12_weight"."""
    return re.sub(r"\d+(?=_)", "", name)


def checksum(parts: Iterable[str]) -> int:
    """Of strings, in their order."""
    return zlib.crc32("\n".join(parts).encode())


def listed(keys: Sequence[str]) -> str:
    """The first keys, and how many more there are: for an error."""
    return ", ".join(keys[:_SHOWN]) + (f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")
