"""The crates, built by cargo against the installed package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from byteps.library import LIBRARY
from jobs import DEADLINE, clean_environment

_CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def cargo(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """cargo(folder, "test", ..., VARIABLE=...): runs cargo in a folder of the checkout; what it printed, whether it
    succeeded or not."""
    program = shutil.which("cargo")
    if program is None:
        pytest.skip("there is no cargo on this machine: tools/setup installs Debian's")
    assert program is not None
    target = tmp_path_factory.mktemp("cargo")
    environment = clean_environment(
        BYTEPS_HOME=str(Path(LIBRARY.path).resolve().parent.parent),
        CARGO_HOME=str(target / "home"),
        CARGO_TARGET_DIR=str(target / "target"),
        # The tests start jobs with the bpslaunch of this environment.
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        RUST_BACKTRACE="0",
    )

    def run(folder: str, command: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, command, "--offline", *arguments],
            cwd=_CHECKOUT / folder,
            env=environment | variables,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
        )

    return run


@pytest.fixture(scope="session")
def digits(cargo: Callable[..., subprocess.CompletedProcess[str]]) -> str:
    """The path of the example program."""
    done = cargo("examples/rust", "build", "--release", "--message-format=json-render-diagnostics")
    assert done.returncode == 0, done.stdout
    paths = re.findall(r'"executable":"([^"]+)"', done.stdout)
    return paths[-1]
