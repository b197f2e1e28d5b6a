"""tools/train_step.py as its users call it. No time is compared with a clock: the machine may be busy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frameworks" / "support"))

from jobs import clean_environment, launcher_command

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "train_step.py"

MODEL = """\
# A test's.
forward_ms 3
backward_ms 6
tensor first.weight 300x100 0.1 5.5
tensor first.bias 100 0.2 5.4
tensor second.weight 40 1.5 2
"""


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*launcher_command(2, 1), sys.executable, str(PROGRAM), *words]
    return subprocess.run(
        command, env=clean_environment(), cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_all_ways_train_the_same(tmp_path: Path) -> None:
    (tmp_path / "small.model").write_text(MODEL)
    done = _run(tmp_path, "--model", "./small.model", "--steps", "3", "--warm-up", "1", "--against", "gloo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers; A test's." in done.stdout
    assert "3 gradients, 0.1 MB; computation 0.009 s (0.003 forward)" in done.stdout
    rows = re.findall(r"^\[worker 0\] +(step\(\) waits|overlap_forward|DDP, Gloo) +([\d.]+) ", done.stdout, re.M)
    assert [name for name, _ in rows] == ["step() waits", "overlap_forward", "DDP, Gloo"]
    assert all(float(seconds) >= 0.008 for _, seconds in rows), "the computation was slept"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--model", "lenet"], "there is no model 'lenet'"), (["--steps", "0"], "--steps must be positive")],
)
def test_wrong_options(tmp_path: Path, words: list[str], message: str) -> None:
    done = _run(tmp_path, *words)
    assert done.returncode != 0
    assert message in done.stderr
