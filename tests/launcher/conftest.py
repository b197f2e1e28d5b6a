"""Launches of bpslaunch in real processes, with the proof that each leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from launching import BPSLAUNCH, COOKIE, Launch, Service, Spawn, Start, Worker, real_byteps

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
def spawn(tmp_path: pathlib.Path) -> Iterator[Spawn]:
    """Starts a process; at the end of the test all that it started must be gone, its temporary files included."""
    launches: list[Launch] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def run(*command: str, variables: dict[str, str] | None = None, **popen: Any) -> Launch:
        others = ("DMLC_", "BYTEPS_", "NVIDIA_", "OMP_", "HOROVOD_", "PS_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        clean.update({"TMPDIR": str(temporary), **(variables or {}), COOKIE: f"cookie-{uuid.uuid4().hex}"})
        launches.append(Launch(command, clean, tmp_path, **popen))
        return launches[-1]

    yield run
    left = {}
    for launch in launches:
        if launch.process.poll() is None:  # The test has failed.
            launch.process.kill()
            launch.process.wait()
            launch.wait_gone()
    for launch in launches:
        left.update(launch.processes())
        for pid in launch.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}"
    assert not list(temporary.iterdir()), "temporary files left behind"


@pytest.fixture
def start(spawn: Spawn, service: Service) -> Start:
    """Starts bpslaunch, with a program that stands for byteps_server unless the variables name another."""
    default_service = service()

    def run(*words: str, variables: dict[str, str] | None = None, **popen: Any) -> Launch:
        return spawn(
            *BPSLAUNCH, *words, variables={"BYTEPS_SERVER_BINARY": default_service, **(variables or {})}, **popen
        )

    return run


@pytest.fixture
def real() -> dict[str, str]:
    """The variables with which the real library and server are used."""
    variables = real_byteps()
    if variables is None:
        pytest.skip("BytePS is neither installed nor built: bazel build //frameworks/python:wheel")
    return variables


@pytest.fixture
def greeter() -> Iterator[Callable[[bytes], int]]:
    """Listens at a port and says some bytes to whoever connects, then closes."""
    servers = []

    def listen(words: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        server.settimeout(100)

        def serve() -> None:
            with server, server.accept()[0] as connection:
                connection.sendall(words)

        servers.append(threading.Thread(target=serve))
        servers[-1].start()
        return server.getsockname()[1]

    yield listen
    for thread in servers:
        thread.join()
