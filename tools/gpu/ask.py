"""A short question to a program: what it says, within a limit.

    said = ask([sys.executable, "-m", "gpu.machine"], environment, 30)
    if said.why_not: ...                       # "it has not ended within 30 s", or the last line of its errors

What hangs inside the driver may not even hear SIGKILL: it is left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Said:
    """`why_not`: why there is no answer; empty if the program has ended with 0."""

    text: str
    why_not: str


def ask(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Said:
    """Runs the program in a process group of its own."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return Said("", str(error))
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            return Said("", f"it has not ended within {seconds:g} s")
        out.seek(0)
        errors.seek(0)
        if code == 0:
            return Said(out.read().strip(), "")
        last = errors.read().strip().splitlines()[-1:]
        return Said("", last[0] if last else f"it has ended with {code}")
