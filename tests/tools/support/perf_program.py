"""bps_perf as a user runs it.

done = run("--servers", "0", "--sizes", "4")
assert done.returncode == 0, done.stderr
with start("--sizes", "100M") as perf: ...
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


def start(*words: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """With its output in pipes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment.update(variables or {})
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run(*words: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Until it ends."""
    with start(*words, variables=variables) as perf:
        try:
            output, errors = perf.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            perf.terminate()
            raise
    return subprocess.CompletedProcess(perf.args, perf.returncode, output, errors)
