"""Runs examples, in jobs and alone, and reads what they print."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from jobs import launcher_command, output_of

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(path: str, *arguments: str, workers: int = 1, **variables: str) -> str:
    """What the example prints, in one process or in a job of some workers and one server. It must succeed."""
    return run_program(EXAMPLES / path, *arguments, workers=workers, **variables)


def run_program(path: Path, *arguments: str, workers: int = 1, **variables: str) -> str:
    """The same of any program."""
    launcher = launcher_command(workers, 1) if workers > 1 else []
    return output_of([*launcher, sys.executable, str(path), *arguments], **variables)


def losses(output: str) -> list[float]:
    """The loss of each epoch."""
    return [float(loss) for loss in re.findall(r"epoch +\d+/\d+  loss (\d+\.\d+)", output)]
