"""tools/ddp_step.py as its users call it. No time is compared with a clock: the machine may be busy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frameworks" / "support"))

from jobs import clean_environment, launcher_command

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "ddp_step.py"


def test_all_ways_are_timed_and_train_the_same(tmp_path: Path) -> None:
    words = ["--turns", "2", "--warm-up", "1", "--row", "2", "--width", "100"]
    command = [*launcher_command(2, 0), sys.executable, str(PROGRAM), *words]
    done = subprocess.run(
        command, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # 1,550,848 parameters of convolutions, and 2,059 for each output of the large layer, and 10.
    assert "2 workers, 2 turns of 2 steps of 8 images each, 7.0 MB of gradients" in done.stdout
    rows = re.findall(r"^\[worker 0\]\s+(\S.*?)\s+([\d.]+)\s+([\d.]+)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == [
        "DDP, Gloo",
        "DDP, Gloo, again",
        "DDP, backend byteps",
        "byteps wrapper",
        "DistributedOptimizer",
        "overlap_forward",
    ]
    assert rows[0][2] == "1.00" and all(float(row[1]) > 0 for row in rows)
