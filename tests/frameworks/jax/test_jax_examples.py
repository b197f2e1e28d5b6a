"""The examples for JAX, as jobs of two workers and a server: they learn, as one process does on the double batch, and
the workers end with the same bits."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from installed import framework

framework("jax")
framework("optax")

import numpy as np
from example_runs import losses
from jobs import launcher_command, output_of

_EXAMPLES = Path(__file__).parents[3] / "examples" / "jax"


def _run(launcher: list[str], example: str, *arguments: str, **variables: str) -> str:
    return output_of([*launcher, sys.executable, str(_EXAMPLES / example), *arguments], **variables)


def _digits(launcher: list[str]) -> list[float]:
    """The losses of its epochs."""
    output = _run(launcher, "digits.py", "--epochs", "6")
    assert len(re.findall(r"epoch +\d/6  loss \d\.\d+  test accuracy \d\.\d+  \d+ samples/s", output)) == 6, output
    summary = re.search(r"digits: test accuracy (\S+) in \S+ s, (\d) workers, (\d) servers", output)
    assert summary is not None, output
    assert float(summary[1]) >= 0.95
    assert (summary[2], summary[3]) == (("2", "1") if launcher else ("1", "0"))
    return losses(output)


def test_digits() -> None:
    pytest.importorskip("sklearn")
    alone, shared = _digits([]), _digits(launcher_command(2, 1))
    assert len(shared) == len(alone) == 6
    # Rounding differs, and Adam makes more of it with every step.
    assert shared == pytest.approx(alone, rel=0.02, abs=0.004)


def _losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step +\d+/\d+  loss (\S+)", output)]


def test_transformer(tmp_path: Path) -> None:
    small = ("--steps", "40", "--batch-size", "8", "--length", "32", "--width", "32")
    alone = _losses(_run([], "transformer.py", *small, "--save", str(tmp_path / "alone")))
    assert len(alone) == 3 and alone[-1] < 0.7 * alone[0]
    for devices in (1, 2):
        saved = tmp_path / f"with {devices} devices"
        output = _run(
            launcher_command(2, 1),
            "transformer.py",
            *small,
            "--save",
            str(saved),
            XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
        )
        assert f"2 workers, {devices} devices each, 1 servers" in output
        np.testing.assert_allclose(_losses(output), alone, rtol=0.01)
        ranks = [np.load(f"{saved}.{rank}.npz") for rank in range(2)]
        whole = np.load(tmp_path / "alone.0.npz")
        for leaf in whole.files:
            assert ranks[0][leaf].tobytes() == ranks[1][leaf].tobytes()
            np.testing.assert_allclose(ranks[0][leaf], whole[leaf], rtol=0.1, atol=0.02)


def test_synthetic_benchmark() -> None:
    quick = ("--num-warmup-batches", "2", "--num-batches-per-iter", "2", "--num-iters", "3", "--image-size", "16")
    output = _run(launcher_command(2, 1), "synthetic_benchmark.py", "--batch-size", "2", "--fp16-pushpull", *quick)
    assert "Number of workers: 2" in output
    assert len(re.findall(r"Iter #\d: \d+\.\d img/sec per worker", output)) == 3, output
    assert re.search(r"Total img/sec on 2 worker\(s\): \d+\.\d \+-\d+\.\d", output), output
