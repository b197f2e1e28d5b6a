"""The examples for Keras on each backend: two workers learn as one process does with the double batch; the benchmark
counts images."""

from __future__ import annotations

import importlib.util

import pytest
from installed import framework

framework("keras")
pytest.importorskip("sklearn")

from example_runs import losses, run_example


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_digits(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed here: tools/setup --frameworks")
    alone = losses(run_example("keras/digits.py", "--epochs=4", KERAS_BACKEND=backend))
    shared = losses(run_example("keras/digits.py", "--epochs=4", workers=2, KERAS_BACKEND=backend))
    assert len(shared) == len(alone) == 4
    # Rounding differs, and Adam makes more of it with every step.
    assert shared == pytest.approx(alone, rel=0.02, abs=0.004)
    assert shared[-1] < 0.3


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_synthetic_benchmark(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed here: tools/setup --frameworks")
    flags = ["--model=small", "--batch-size=4", "--num-warmup-batches=1", "--num-batches-per-iter=2", "--num-iters=2"]
    output = run_example("keras/synthetic_benchmark.py", *flags, "--fp16-pushpull", workers=2, KERAS_BACKEND=backend)
    assert "Number of workers: 2" in output
    assert "Iter #1: " in output and "Total img/sec on 2 worker(s): " in output
