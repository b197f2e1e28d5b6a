"""The example that trains on digits: it learns, it shows progress, and its summary says what it ran on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import launcher_command, output_of

pytest.importorskip("torch")
pytest.importorskip("sklearn")

_EXAMPLE = Path(__file__).parents[3] / "examples" / "torch" / "digits.py"


def _run(*launcher: str, **variables: str) -> str:
    return output_of([*launcher, sys.executable, str(_EXAMPLE), "--epochs", "8"], **variables)


def _check(output: str, workers: int, servers: int) -> re.Match[str]:
    assert len(re.findall(r"epoch +\d/8  loss \d\.\d+  test accuracy \d\.\d+  \d+ samples/s", output)) == 8, output
    summary = re.search(
        r"digits: test accuracy (\S+) in \S+ s, (\d+) workers, (\d+) servers, transport (.+), scheduler (.+)\n$",
        output,
    )
    assert summary is not None, output
    assert float(summary[1]) >= 0.95
    assert (int(summary[2]), int(summary[3])) == (workers, servers)
    return summary


def test_two_workers() -> None:
    launcher = launcher_command(2, 1)
    summary = _check(_run(*launcher), workers=2, servers=1)
    assert summary[4].startswith("tcp")
    assert summary[5].startswith("credit")


def test_one_process() -> None:
    _check(_run(), workers=1, servers=0)
