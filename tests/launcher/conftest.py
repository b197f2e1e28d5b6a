"""Launches of bpslaunch in real processes, with the proof that each leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from launching import COOKIE, Launch, Service, Start, Worker

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # `import launcher.…` in tests of single modules.

# A service of a job, as the launcher sees one: runs until it is told to end.
_SERVICE = """\
#!{python}
import signal
signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def service(tmp_path: pathlib.Path) -> Service:
    """Makes a program to stand for byteps_server; the default one runs until SIGTERM."""

    def make(source: str = _SERVICE) -> str:
        path = tmp_path / f"service-{uuid.uuid4().hex[:8]}"
        path.write_text(source.replace("{python}", sys.executable))
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def worker(tmp_path: pathlib.Path) -> Worker:
    """Makes the command of a worker from the source of a Python script."""

    def make(source: str) -> list[str]:
        path = tmp_path / f"worker-{uuid.uuid4().hex[:8]}.py"
        path.write_text(source)
        return [sys.executable, str(path)]

    return make


@pytest.fixture
def start(tmp_path: pathlib.Path, service: Service) -> Iterator[Start]:
    """Starts bpslaunch; at the end of the test all that it started must be gone, its temporary files included."""
    launches: list[Launch] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    default_service = service()

    def run(*words: str, variables: dict[str, str] | None = None, **popen: Any) -> Launch:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "BYTEPS_", "NVIDIA_", "OMP_"))}
        clean.update({"TMPDIR": str(temporary), "BYTEPS_SERVER_BINARY": default_service})
        clean.update(variables or {})
        clean[COOKIE] = f"cookie-{uuid.uuid4().hex}"
        launches.append(Launch(words, clean, tmp_path, **popen))
        return launches[-1]

    yield run
    left = {}
    for launch in launches:
        if launch.process.poll() is None:
            launch.process.kill()
            launch.process.wait()
            launch.wait_gone()
        left.update(launch.processes())
        for pid in launch.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}"
    assert not list(temporary.iterdir()), "temporary files left behind"
