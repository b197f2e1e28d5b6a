"""bps_perf as a user runs it.

done = run("--servers", "0", "--sizes", "4")
assert done.returncode == 0, done.stderr
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[3] / "tools" / "bps_perf.py"
_SECONDS = 300
# What would make another job of it.
_FOREIGN = ("BYTEPS_", "DMLC_", "NETLAB_")


def run(*words: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Until it ends."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment.update(variables or {})
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env=environment,
    )
