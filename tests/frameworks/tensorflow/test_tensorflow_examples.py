"""The examples: two workers learn as one process does with the double batch."""

from __future__ import annotations

import pytest
from installed import framework

framework("tensorflow")
pytest.importorskip("sklearn")

from example_runs import losses, run_example


def _same(shared: list[float], alone: list[float], epochs: int) -> None:
    assert len(shared) == len(alone) == epochs
    # Rounding differs, and Adam makes more of it with every step.
    assert shared == pytest.approx(alone, rel=0.02, abs=0.004)


def test_digits() -> None:
    alone = run_example("tensorflow/digits.py", "--epochs=4")
    shared = run_example("tensorflow/digits.py", "--epochs=4", workers=2)
    _same(losses(shared), losses(alone), 4)
    assert "2 workers, 1 servers" in shared
    assert losses(shared)[-1] < 0.2


def test_mirrored_strategy() -> None:
    alone = run_example("tensorflow/mirrored_strategy.py", "--epochs=3")
    shared = run_example("tensorflow/mirrored_strategy.py", "--epochs=3", "--devices=2", workers=2)
    _same(losses(shared), losses(alone), 3)
    assert "4 replicas" in shared


@pytest.mark.parametrize("flags", [["--fp16-pushpull"], ["--eager"]])
def test_synthetic_benchmark(flags: list[str]) -> None:
    sizes = ["--batch-size=4", "--num-warmup-batches=1", "--num-batches-per-iter=2", "--num-iters=2"]
    output = run_example("tensorflow/synthetic_benchmark.py", "--model=small", *sizes, *flags, workers=2)
    assert "Iter #1: " in output and "Total img/sec on 2 CPU(s): " in output
