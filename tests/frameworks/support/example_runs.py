"""Runs examples, in jobs and alone, and reads what they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from jobs import DEADLINE, clean_environment, launcher_command

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(path: str, *arguments: str, workers: int = 1, **variables: str) -> str:
    """What the example prints, in one process or in a job of some workers and one server. It must succeed."""
    return run_program(EXAMPLES / path, *arguments, workers=workers, **variables)


def run_program(path: Path, *arguments: str, workers: int = 1, **variables: str) -> str:
    """The same of any program."""
    launcher = launcher_command(workers, 1) if workers > 1 else []
    done = subprocess.run(
        [*launcher, sys.executable, str(path), *arguments],
        env=clean_environment(**variables),
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    """The loss of each epoch."""
    return [float(loss) for loss in re.findall(r"epoch +\d+/\d+  loss (\d+\.\d+)", output)]
