"""tools/gradient_overhead.py as its users call it. No time is compared with a clock: the machine may be busy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frameworks" / "support"))

from jobs import clean_environment, launcher_command

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "gradient_overhead.py"


def test_all_ways_are_measured(tmp_path: Path) -> None:
    sizes = ["--gradients", "20", "--steps", "3", "--warm-up", "1"]
    command = [*launcher_command(2, 0), sys.executable, str(PROGRAM), *sizes]
    done = subprocess.run(
        command, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    number = r"(-?[\d.]+)"
    row = rf"^\[worker 0\]\s+(\S.*?)\s+{number}\s+{number}\s+{number}\s+{number}$"
    rows = re.findall(row, done.stdout, re.MULTILINE)
    assert [found[0] for found in rows] == ["hook, Gloo", "DDP, Gloo", "DistributedOptimizer"], done.stdout
    assert rows[0][3] == "1.00"
