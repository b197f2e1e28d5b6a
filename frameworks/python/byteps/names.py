"""Names that are the same on all ranks."""

from __future__ import annotations

import re

# "dense_3/kernel:0": the third layer that this process has made without a name, and the first output of it.
_NUMBERS = re.compile(r"(_\d+)?(:\d+)?(?=/|$)")


def unnumbered(name: str) -> str:
    """The name of a variable without what depends on how many others its process has made: "dense/kernel"."""
    return _NUMBERS.sub("", name)
