"""The examples for MXNet: two workers learn digits as one process does with the double batch, and end with the same
bits, in each run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from installed import framework

mx = framework("mxnet")
pytest.importorskip("sklearn")

from example_runs import losses
from jobs import launcher_command, output_of

_EXAMPLES = Path(__file__).parents[3] / "examples" / "mxnet"


def _run(launcher: list[str], example: str, *arguments: str) -> str:
    return output_of([*launcher, sys.executable, str(_EXAMPLES / example), *arguments])


def _digits(launcher: list[str], *arguments: str) -> list[float]:
    """The losses of its epochs."""
    output = _run(launcher, "digits.py", "--epochs", "6", *arguments)
    summary = re.search(r"digits: test accuracy (\S+) in \S+ s, (\d) workers, (\d) servers", output)
    assert summary is not None, output
    assert float(summary[1]) >= 0.95
    assert (summary[2], summary[3]) == (("2", "1") if launcher else ("1", "0"))
    return losses(output)


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of one process on the double batch."""
    return _digits([])


@pytest.mark.parametrize("options", [[], ["--kvstore"]], ids=["trainer", "kvstore"])
def test_two_workers(options: list[str], tmp_path: Path, alone: list[float]) -> None:
    saved = []
    for run in range(2):
        shared = _digits(launcher_command(2, 1), *options, "--save", str(tmp_path / str(run)))
        assert len(shared) == len(alone) == 6
        # Rounding differs, and Adam makes more of it with every step.
        assert shared == pytest.approx(alone, rel=0.02, abs=0.004)
        saved += [mx.nd.load(str(tmp_path / f"{run}.{rank}")) for rank in range(2)]
    for other in saved[1:]:
        assert all(saved[0][name].asnumpy().tobytes() == other[name].asnumpy().tobytes() for name in saved[0])


def test_synthetic_benchmark() -> None:
    quick = ("--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "3", "--image-size", "32")
    model = ("--model", "resnet18_v1", "--batch-size", "2", "--fp16-pushpull")
    output = _run(launcher_command(2, 1), "synthetic_benchmark.py", *model, *quick)
    assert "Number of workers: 2" in output
    assert len(re.findall(r"Iter #\d: \d+\.\d img/sec per worker", output)) == 3, output
    assert re.search(r"Total img/sec on 2 worker\(s\): \d+\.\d \+-\d+\.\d", output), output
