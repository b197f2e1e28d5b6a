"""A program in C whose tensors are in the memory of a GPU (the simulated one), run in jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import launcher_command, output_of

_BUILT = Path(__file__).parents[3] / "bazel-bin/device_plugins/fake/libbyteps_device_fake.so"
# tools/test keeps a copy of its own, which other builds leave alone.
_PLUGIN = Path(os.environ.get("FAKE_GPU_PLUGIN") or _BUILT)


@pytest.fixture(scope="module")
def sums(c_program: Callable[[str], str]) -> str:
    return c_program("tests/frameworks/c/gpu_sums")


@pytest.mark.parametrize("schedule", ["late", "random"])
@pytest.mark.parametrize(("way", "servers", "nccl"), [("host", 1, "1"), ("host", 0, "0"), ("gpus", 0, "1")])
def test_sums(sums: str, way: str, servers: int, nccl: str, schedule: str) -> None:
    """With a server, among the workers of the host in its memory, and among their GPUs."""
    assert _PLUGIN.exists(), f"{_PLUGIN} is missing: bazel build //device_plugins/fake"
    output = output_of(
        [*launcher_command(2, servers), sums, way],
        BYTEPS_DEVICE=str(_PLUGIN),
        BYTEPS_FAKE_GPU=f"devices=2,seed=3,schedule={schedule}",
        BYTEPS_NCCL=nccl,
    )
    assert output.count(" of 2: all sums are right") == 2, output
