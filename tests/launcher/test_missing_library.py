"""A server on a machine that lacks a library which it is linked with: the error names its package."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from launching import Start, Worker


def program_without(library: str, folder: pathlib.Path) -> str:
    """A program that is linked with a library of this name, which is then gone."""
    source, binary, shared = folder / "source.c", folder / "byteps_server", folder / library
    source.write_text("int of_library(void);\nint main(void) { return of_library(); }\n")
    (folder / "library.c").write_text("int of_library(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", shared, folder / "library.c"], check=True)
    subprocess.run(["cc", "-o", binary, source, shared], check=True)
    shared.unlink()
    return str(binary)


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")
@pytest.mark.parametrize(
    "library, todo",
    [
        ("libglog.so.77", "apt-get install libgoogle-glog0v6 on Debian 12"),
        ("libnobody.so.1", "install the package that has it"),
    ],
)
def test_what_the_server_lacks_is_named_with_its_package(
    start: Start, worker: Worker, tmp_path: pathlib.Path, library: str, todo: str
) -> None:
    variables = {"BYTEPS_SERVER_BINARY": program_without(library, tmp_path)}
    wait = worker("import time\ntime.sleep(600)\n")
    launch = start("--workers", "2", "--servers", "1", "--kill-after", "1", "--", *wait, variables=variables)
    assert launch.wait() == 127, launch.stderr
    assert f"this machine lacks {library}, which it is linked with: {todo}" in launch.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")
def test_a_role_started_by_hand_says_it_too(tmp_path: pathlib.Path) -> None:
    program = program_without("libglog.so.77", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import byteps.server"],
        env={**os.environ, "DMLC_ROLE": "server", "BYTEPS_SERVER_BINARY": program},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 127, done.stderr
    assert "apt-get install libgoogle-glog0v6 on Debian 12" in done.stderr
