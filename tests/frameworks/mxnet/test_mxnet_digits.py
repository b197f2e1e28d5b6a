"""The example that trains on digits: it learns, and two workers end with the same bits, in each run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed import framework

mx = framework("mxnet")
pytest.importorskip("sklearn")

from jobs import DEADLINE, clean_environment, launcher_command

_EXAMPLE = Path(__file__).parents[3] / "examples" / "mxnet" / "digits.py"


def _run(launcher: list[str], *arguments: str) -> str:
    done = subprocess.run(
        [*launcher, sys.executable, str(_EXAMPLE), "--epochs", "6", *arguments],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = re.search(r"digits: test accuracy (\S+) in \S+ s, (\d) workers, (\d) servers", done.stdout)
    assert summary is not None, done.stdout
    assert float(summary[1]) >= 0.95
    assert (summary[2], summary[3]) == (("2", "1") if launcher else ("1", "0"))
    return done.stdout


def test_one_process() -> None:
    _run([])


@pytest.mark.parametrize("options", [[], ["--kvstore"]], ids=["trainer", "kvstore"])
def test_two_workers(options: list[str], tmp_path: Path) -> None:
    saved = []
    for run in range(2):
        _run(launcher_command(2, 1), *options, "--save", str(tmp_path / str(run)))
        saved += [mx.nd.load(str(tmp_path / f"{run}.{rank}")) for rank in range(2)]
    for other in saved[1:]:
        assert all(saved[0][name].asnumpy().tobytes() == other[name].asnumpy().tobytes() for name in saved[0])
