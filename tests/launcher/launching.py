"""Processes under test, bpslaunch above all, and what of them is alive; and where the real BytePS is."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
BPSLAUNCH = [sys.executable, str(_CHECKOUT / "launcher" / "launch.py")]
# Workers of real jobs, in front of their arguments: one has its variables from bpslaunch, the other finds its job.
TRAINER = [sys.executable, str(_CHECKOUT / "tests" / "launcher" / "trainer.py")]
JOINER = [sys.executable, str(_CHECKOUT / "tests" / "launcher" / "joiner.py")]
COOKIE = "BPSLAUNCH_TEST_COOKIE"


def _own_network() -> list[str]:
    # A user namespace is for users other than root; within a chroot no user may make one.
    for command in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        with contextlib.suppress(OSError):
            if subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0:
                break
    return command


# In front of a command: in a network namespace of its own.
OWN_NETWORK = _own_network()

# Long enough for a loaded machine; a test that meets it fails.
DEADLINE = 120.0

# Characters of an output that a failure shows: rounds of a trainer can be many.
_SHOWN = 10_000

# Of tests in which the trainer imports byteps as users do.
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("byteps") is None, reason="the package byteps is not installed"
)

# What the fixtures of conftest.py are.
Start = Callable[..., "Launch"]
Spawn = Callable[..., "Launch"]
Service = Callable[..., str]
Worker = Callable[[str], "list[str]"]


class Launch:
    """A process that runs. Its output goes to files, so that nothing can block."""

    def __init__(self, command: Sequence[str], variables: dict[str, str], folder: pathlib.Path, **popen: Any) -> None:
        self.cookie = variables[COOKIE]
        self._stdout = folder / f"{self.cookie}.stdout"
        self._stderr = folder / f"{self.cookie}.stderr"
        with open(self._stdout, "wb") as stdout, open(self._stderr, "wb") as stderr:
            prepare = popen.pop("preexec_fn", None)

            def in_child() -> None:
                # Tests that run in the background, or under nohup, ignore some of these, and so would it.
                for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                if prepare is not None:
                    prepare()

            popen["preexec_fn"] = in_child
            popen.setdefault("stdin", subprocess.DEVNULL)
            popen.setdefault("stdout", stdout)
            self.process = subprocess.Popen(command, env=variables, stderr=stderr, cwd=folder, **popen)

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stdout_bytes(self) -> bytes:
        return self._stdout.read_bytes()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def wait(self, seconds: float = DEADLINE) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(
                f"{self.process.args} still runs after {seconds} s\nstdout:\n{self.stdout[-_SHOWN:]}\n"
                f"stderr:\n{self.stderr[-_SHOWN:]}"
            )

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


def real_byteps() -> dict[str, str] | None:
    """The variables that name library, server and plugins: those given, else of the installed package, else of a build
    in this checkout; None if there is neither."""
    given = {name: os.environ.get(name) for name in ("BYTEPS_LIBRARY", "BYTEPS_SERVER_BINARY", "BYTEPS_PLUGIN_PATH")}
    if all(given.values()):
        return {name: str(value) for name, value in given.items()}
    spec = importlib.util.find_spec("byteps")
    if spec is not None and spec.submodule_search_locations:
        package = pathlib.Path(spec.submodule_search_locations[0])
        library, server, plugins = package / "lib" / "libbyteps.so", package / "bin" / "byteps_server", []
    else:
        built = _CHECKOUT / "bazel-bin"
        library, server = built / "core" / "libbyteps.so", built / "server" / "byteps_server"
        plugins = [built / "transport_plugins" / "libfabric", built / "scheduler_plugins" / "credit"]
    if not library.exists() or not server.exists():
        return None
    found = {"BYTEPS_LIBRARY": str(library), "BYTEPS_SERVER_BINARY": str(server)}
    return {**found, "BYTEPS_PLUGIN_PATH": ":".join(map(str, plugins))}


def free_port() -> int:
    """A port at which no process listens, outside the range from which the kernel gives any port: so it stays free."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(10_000, lowest) if lowest > 12_000 else 0
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as server:
            return server.getsockname()[1]
    raise OSError("no port is free")


def need_own_network(prepare: str = "true", programs: Sequence[str] = ()) -> None:
    """Skips the test where there is no OWN_NETWORK in which the shell line `prepare`, with these programs, works."""
    for program in (OWN_NETWORK[0], *programs):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here")
    made = subprocess.run([*OWN_NETWORK, "sh", "-c", prepare], check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"this user, or this kernel, has no network namespaces in which {prepare!r} works")


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
