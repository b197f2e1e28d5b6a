"""The package's own tests: one worker alone, and whole jobs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable


def test_package(julia: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = julia("frameworks/julia/BytePS/test/runtests.jl")
    assert done.returncode == 0, done.stdout
    total = re.search(r"^BytePS +\| +(\d+) +(\d+) *$", done.stdout, re.MULTILINE)
    assert total is not None and int(total[1]) == int(total[2]) >= 69, done.stdout
    assert "skipped" not in done.stdout, done.stdout
