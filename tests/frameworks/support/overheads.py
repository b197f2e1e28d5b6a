"""tools/operation_overhead.py as its users call it. No time is compared with a clock: the machine may be busy."""

from __future__ import annotations

import re
from pathlib import Path

from example_runs import run_program

_PROGRAM = Path(__file__).parents[3] / "tools" / "operation_overhead.py"


def check_overhead(framework: str, workers: int) -> None:
    """Fails unless the tool times operations of the framework side by side and in a chain."""
    output = run_program(_PROGRAM, framework, "--operations=5", "--seconds=0.05", workers=workers)
    rows = re.findall(
        rf"{framework}, {workers} workers, 5 operations (.*): "
        r"identity ([\d.]+) us, push_pull ([\d.]+) us, (-?[\d.]+) us more",
        output,
    )
    assert [row[0] for row in rows] == ["side by side", "in a chain"], output
    for _, identity, push_pull, more in rows:
        assert float(identity) > 0 and float(push_pull) > 0
        assert abs(float(push_pull) - float(identity) - float(more)) < 0.02, output
