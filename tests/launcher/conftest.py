"""Launches of bpslaunch in real processes, with the proof that each leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_LAUNCH = _CHECKOUT / "launcher" / "launch.py"
_COOKIE = "BPSLAUNCH_TEST_COOKIE"

# Long enough for a loaded machine; a test that meets it fails.
DEADLINE = 30.0

sys.path.insert(0, str(_CHECKOUT))  # `import launcher.…` in the tests of single modules.

# A service of a job, as the launcher sees one: runs until it is told to end.
_SERVICE = """\
#!{python}
import signal
signal.sigwait([signal.SIGTERM])
"""


class Launch:
    """A bpslaunch that runs. Its output goes to files, so that nothing can block."""

    def __init__(self, words: Sequence[str], variables: dict[str, str], folder: pathlib.Path, **popen: object) -> None:
        self.cookie = variables[_COOKIE]
        self._stdout = folder / f"{self.cookie}.stdout"
        self._stderr = folder / f"{self.cookie}.stderr"
        with open(self._stdout, "wb") as stdout, open(self._stderr, "wb") as stderr:
            popen.setdefault("stdin", subprocess.DEVNULL)
            popen.setdefault("stdout", stdout)
            self.process = subprocess.Popen(
                [sys.executable, str(_LAUNCH), *words], env=variables, stderr=stderr, cwd=folder, **popen
            )

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def wait(self, seconds: float = DEADLINE) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"bpslaunch still runs after {seconds} s\nstdout:\n{self.stdout}\nstderr:\n{self.stderr}")

    def wait_for(self, text: str, count: int = 1, seconds: float = DEADLINE) -> None:
        """Waits until its stdout contains `text` this often."""
        wait_until(
            lambda: self.stdout.count(text) >= count,
            lambda: f"{text!r} x {count} not seen\nstdout:\n{self.stdout}\nstderr:\n{self.stderr}",
            seconds,
        )

    def processes(self) -> dict[int, str]:
        """All processes of this launch that are alive: pid and command line."""
        return _with_cookie(self.cookie)

    def wait_gone(self, seconds: float = DEADLINE) -> None:
        wait_until(lambda: not self.processes(), lambda: f"left behind: {self.processes()}", seconds)


def wait_until(condition: Callable[[], object], complaint: Callable[[], str], seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(complaint())
        time.sleep(0.01)


def _with_cookie(cookie: str) -> dict[int, str]:
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if cookie.encode() in (path / "environ").read_bytes():
                # A zombie's environ is empty, so it is not seen here.
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


@pytest.fixture
def service(tmp_path: pathlib.Path) -> Callable[[str], str]:
    """Makes a program to stand for byteps_server; the default one runs until SIGTERM."""

    def make(source: str = _SERVICE) -> str:
        path = tmp_path / f"service-{uuid.uuid4().hex[:8]}"
        path.write_text(source.replace("{python}", sys.executable))
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def worker(tmp_path: pathlib.Path) -> Callable[[str], list[str]]:
    """Makes the command of a worker from the source of a Python script."""

    def make(source: str) -> list[str]:
        path = tmp_path / f"worker-{uuid.uuid4().hex[:8]}.py"
        path.write_text(source)
        return [sys.executable, str(path)]

    return make


@pytest.fixture
def start(tmp_path: pathlib.Path, service: Callable[[], str]) -> Iterator[Callable[..., Launch]]:
    """Starts bpslaunch; at the end of the test all that it started must be gone, its temporary files included."""
    launches: list[Launch] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    default_service = service()

    def run(*words: str, variables: dict[str, str] | None = None, **popen: object) -> Launch:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "BYTEPS_", "NVIDIA_", "OMP_"))}
        clean.update({"TMPDIR": str(temporary), "BYTEPS_SERVER_BINARY": default_service})
        clean.update(variables or {})
        clean[_COOKIE] = f"cookie-{uuid.uuid4().hex}"
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


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until
