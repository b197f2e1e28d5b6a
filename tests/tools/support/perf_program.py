"""bps_perf as a user runs it.

done = run("--servers", "0", "--sizes", "4")
assert done.returncode == 0, done.stderr
with start("--sizes", "100M") as perf: ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[3] / "tools" / "bps_perf.py"
_SECONDS = 300
# What would make another job of it.
_FOREIGN = ("BYTEPS_", "DMLC_", "NETLAB_")


def _default_signals() -> None:
    """In a child: tests that run in the background, or under nohup, ignore some of these, and so would it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def start(
    *words: str, variables: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """With its output in pipes, by the command `within`. It is killed if it still runs in the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment.update(variables or {})
    with subprocess.Popen(
        [*within, sys.executable, str(PROGRAM), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=_default_signals,
    ) as perf:
        try:
            yield perf
        finally:
            if perf.poll() is None:
                perf.kill()


def run(
    *words: str, variables: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Until it ends."""
    with start(*words, variables=variables, within=within) as perf:
        output, errors = perf.communicate(timeout=_SECONDS)
    return subprocess.CompletedProcess(perf.args, perf.returncode, output, errors)
