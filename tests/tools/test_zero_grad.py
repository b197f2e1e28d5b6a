"""tools/zero_grad.py as its users call it. No time is compared with a clock: the machine may be busy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frameworks" / "support"))

from jobs import clean_environment, launcher_command

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "zero_grad.py"
WAYS = ["kept", "re-pointed", "copied", "as made", "DistributedOptimizer, False", "DistributedOptimizer, True"]


def test_all_ways_are_measured(tmp_path: Path) -> None:
    sizes = ["--sizes", "64,256", "--step-size", "1", "--steps", "3", "--warm-up", "1"]
    command = [*launcher_command(2, 0), sys.executable, str(PROGRAM), *sizes]
    done = subprocess.run(
        command, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(\d+) gradients of (\d+) KiB", done.stdout) == [("16", "64"), ("4", "256")], done.stdout
    rows = re.findall(r"^\[worker 0\]\s+(\S.*?)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == WAYS * 2, done.stdout
    assert [row[3] for row in rows if row[0] == "kept"] == ["1.00", "1.00"]
