"""tools/jax_step.py as its users call it. No time is compared with a clock: the machine may be busy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from installed import framework

framework("jax")
pytest.importorskip("optax")

from example_runs import run_program

PROGRAM = Path(__file__).parents[3] / "tools" / "jax_step.py"


def test_all_ways_are_timed() -> None:
    output = run_program(PROGRAM, "--layers=1", "--width=32", "--steps=2", workers=2)
    rows = re.findall(r"^\[worker 0\] (\S.*): median ([\d.]+) ms, .* ratio ([\d.]+)$", output, re.MULTILINE)
    assert {row[0] for row in rows} == {"byteps", "jax.distributed", "no communication"}
    assert {row[0]: row[2] for row in rows}["jax.distributed"] == "1.00"
    assert all(float(row[1]) > 0 for row in rows)
