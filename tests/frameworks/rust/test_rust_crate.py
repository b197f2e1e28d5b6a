"""The jobs among the crate's own tests. Those of one worker alone run as //tests/frameworks/rust:cargo_test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from byteps.library import LIBRARY

Cargo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(("program", "least"), [("jobs", 12), ("collectives", 8)])
def test_jobs(cargo: Cargo, program: str, least: int) -> None:
    done = cargo("frameworks/rust", "test", "--test", program, "--", "--test-threads=2")
    assert done.returncode == 0, done.stdout
    passed = re.search(r"test result: ok\. (\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= least, done.stdout
    assert "skipped" not in done.stdout


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
