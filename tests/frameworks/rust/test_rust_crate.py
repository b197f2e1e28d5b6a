"""The jobs among the crate's own tests. Those of one worker alone run as //tests/frameworks/rust:cargo_test."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from byteps.library import LIBRARY

Cargo = Callable[..., subprocess.CompletedProcess[str]]

_BUILT = Path(__file__).parents[3] / "bazel-bin/device_plugins/fake/libbyteps_device_fake.so"
# tools/test keeps a copy of its own, which other builds leave alone.
_FAKE_GPU = Path(os.environ.get("FAKE_GPU_PLUGIN") or _BUILT)


def _run_jobs(cargo: Cargo, program: str, least: int, **variables: str) -> None:
    """The tests of this program pass, at least so many, and none says that it was skipped."""
    done = cargo("frameworks/rust", "test", "--test", program, "--", "--test-threads=2", "--show-output", **variables)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"test result: ok\. (\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= least, done.stdout
    assert "skipped" not in done.stdout, done.stdout


@pytest.mark.parametrize(("program", "least"), [("jobs", 12), ("collectives", 8)])
def test_jobs(cargo: Cargo, program: str, least: int) -> None:
    _run_jobs(cargo, program, least)


@pytest.mark.parametrize(("schedule", "nccl"), [("late", "1"), ("random", "0")])
def test_gpu_jobs(cargo: Cargo, schedule: str, nccl: str) -> None:
    """On simulated GPUs: with a server, and among the workers of the host, by their GPUs and in its memory."""
    assert _FAKE_GPU.exists(), f"{_FAKE_GPU} is missing: bazel build //device_plugins/fake"
    options = f"devices=2,seed=3,schedule={schedule}"
    _run_jobs(cargo, "gpu", 9, BYTEPS_DEVICE=str(_FAKE_GPU), BYTEPS_FAKE_GPU=options, BYTEPS_NCCL=nccl)


def test_a_missing_library_is_said(cargo: Cargo) -> None:
    done = cargo("frameworks/rust", "build", "-p", "byteps-sys", BYTEPS_HOME="/nowhere")
    assert done.returncode != 0
    assert "libbyteps.so is not in /nowhere/lib (from BYTEPS_HOME)" in done.stdout, done.stdout
    assert "Install BytePS" in done.stdout


def test_without_home_pkg_config_is_asked(cargo: Cargo, tmp_path: Path) -> None:
    folder = Path(LIBRARY.path).resolve().parent
    (tmp_path / "byteps.pc").write_text(
        f"libdir={folder}\nName: byteps\nDescription: BytePS\nVersion: 0.1.0\nLibs: -L${{libdir}} -lbyteps\n"
    )
    found = cargo("frameworks/rust", "build", "-p", "byteps-sys", BYTEPS_HOME="", PKG_CONFIG_PATH=str(tmp_path))
    assert found.returncode == 0, found.stdout
    lost = cargo("frameworks/rust", "build", "-p", "byteps-sys", BYTEPS_HOME="", PKG_CONFIG="/nowhere/pkg-config")
    assert lost.returncode != 0
    assert "BYTEPS_HOME is not set; pkg-config byteps: /nowhere/pkg-config: No such file" in lost.stdout, lost.stdout
