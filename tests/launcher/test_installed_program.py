"""The program `bpslaunch` of the installed package."""

from __future__ import annotations

import pathlib
import re
import sys

import pytest
from launching import Spawn


@pytest.fixture
def bpslaunch() -> str:
    path = pathlib.Path(sys.executable).parent / "bpslaunch"
    if not path.exists():
        pytest.skip(f"byteps is not installed for {sys.executable}")
    return str(path)


def test_runs_a_command(spawn: Spawn, bpslaunch: str) -> None:
    launch = spawn(bpslaunch, "--", sys.executable, "-c", "import byteps; print(byteps.__name__)")
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout == "[worker 0] byteps\n"


def test_does_not_need_the_library_to_explain(spawn: Spawn, bpslaunch: str) -> None:
    launch = spawn(bpslaunch, "--check", variables={"BYTEPS_LIBRARY": "/nonexistent/libbyteps.so"})
    assert launch.wait() == 1
    assert "FAIL  library" in launch.stdout
    assert "Traceback" not in launch.stderr


def test_version(spawn: Spawn, bpslaunch: str) -> None:
    launch = spawn(bpslaunch, "--version")
    assert launch.wait() == 0
    assert re.fullmatch(r"bpslaunch \d+\.\d+\.\d+\S*\n", launch.stdout)


def test_as_a_module(spawn: Spawn, bpslaunch: str) -> None:
    launch = spawn(sys.executable, "-m", "byteps.launcher", "echo", "hi")
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout == "[worker 0] hi\n"
