"""A Julia, and what it is run with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from byteps.library import LIBRARY
from jobs import clean_environment

_CHECKOUT = Path(__file__).parents[3]


def _find_julia() -> str | None:
    found = shutil.which("julia")
    if found is not None:
        return found
    dependencies = Path(os.environ.get("BYTEPS_DEPS") or Path.home() / ".cache" / "byteps")
    fetched = sorted(dependencies.glob("julia-*/bin/julia"))
    return str(fetched[-1]) if fetched else None


@pytest.fixture(scope="session")
def julia_command() -> list[str]:
    """Julia with the package BytePS."""
    julia = _find_julia()
    if julia is None:
        pytest.skip("there is no Julia on this machine, and tools/fetch_julia could not get one")
    return [julia, "--startup-file=no", f"--project={_CHECKOUT / 'frameworks' / 'julia' / 'BytePS'}"]


@pytest.fixture(scope="session")
def julia_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that Julia needs, beside a clean environment."""
    return {
        "BYTEPS_HOME": str(Path(LIBRARY.path).resolve().parent.parent),
        # Compiled packages, for the length of these tests.
        "JULIA_DEPOT_PATH": str(tmp_path_factory.mktemp("julia")),
        # The tests start jobs with the bpslaunch of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.fixture
def julia(
    julia_command: list[str], julia_environment: dict[str, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """julia("file.jl"): runs a file of the checkout; what it printed, whether it succeeded or not."""

    def run(file: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*julia_command, str(_CHECKOUT / file)],
            env=clean_environment(**julia_environment),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )

    return run
