"""What the wrappers in C++ and Rust add to a push_pull: at most 0.2 microseconds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_RUN = Path(__file__).parents[2] / "tools" / "overhead" / "run"

# The wrappers measure 0.01 to 0.1 microseconds; what is left is for a machine that does other things.
_MOST = 200.0


def test_native_wrappers() -> None:
    done = subprocess.run(
        [str(_RUN), "--native", sys.executable], check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    more = {
        name.strip(): float(ns) for name, ns in re.findall(r"^(.+?)  +\d+ ns +([+-]\d+)$", done.stdout, re.MULTILINE)
    }
    assert {"C", "C, callback", "C++"} <= set(more), done.stdout
    # Those of C's callback wait for a thread of the library, which takes as long as the system pleases.
    direct = {name: ns for name, ns in more.items() if not re.search("callback|future|owned", name)}
    assert max(direct.values()) <= _MOST, done.stdout
