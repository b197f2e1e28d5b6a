"""A reader of bpslaunch's output that is slow, as a terminal over a slow line, or has stopped."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pty
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from launching import DEADLINE, OWN_NETWORK, Launch, Start, wait_until

RATE = 60_000  # bytes a second
PIECE = 4096
WORKERS = 8
# A bound for what the launcher does in 8 or 10 seconds (test_countdown.py), on a machine that has many other things to
# do.
SOON = 60

NOISY = ["yes", "a line of the kind that programs write when they have a lot to say"]
LAST_WORDS = "the cause of it all"

# Worker 0 fails when it has been told so; the others write, and end by SIGTERM.
FAILS = f"""\
if [ "$BYTEPS_LOCAL_RANK" = 0 ]; then
    while ! [ -e "$1" ]; do sleep 0.05; done
    echo {LAST_WORDS} >&2
    exit 3
fi
exec {NOISY[0]} "{NOISY[1]}"
"""

# Likewise; the others say when all that is between them and the reader of our output is full.
FAILS_WHEN_BLOCKED = f"""\
if [ "$WHO" = 0 ]; then
    while ! [ -e "$1" ]; do sleep 0.05; done
    echo {LAST_WORDS} >&2
    exit 3
fi
exec {sys.executable} -c '
import os, pathlib, sys, select
os.set_blocking(1, False)
while True:
    try:
        os.write(1, b"a line of a program that has a lot to say\\n" * 100)
    except BlockingIOError:
        if not select.select([], [1], [], 1)[1]:
            pathlib.Path(sys.argv[1] + "." + os.environ["WHO"]).touch()
' "$2"
"""

# Stands for ssh: the program runs here, in a namespace that makes it another host.
CLIENT = """\
#!/bin/sh
for last; do :; done
exec {unshare} --uts sh -c "$last"
"""


class SlowReader:
    """Reads a pipe in a thread of its own, at RATE at most."""

    def __init__(self, rate: float = RATE) -> None:
        self.read_bytes = 0
        self._read, self.pipe = os.pipe()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(rate,))

    def start(self) -> None:
        """Once the writer has the pipe."""
        os.close(self.pipe)
        self._thread.start()

    def _run(self, rate: float) -> None:
        began = time.monotonic()
        while not self._over.wait(max(0.0, began + self.read_bytes / rate - time.monotonic())):
            data = os.read(self._read, PIECE)
            if not data:
                break
            self.read_bytes += len(data)
        os.close(self._read)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(DEADLINE)


@pytest.fixture
def reader() -> Iterator[SlowReader]:
    reader = SlowReader()
    yield reader
    reader.stop()


def flows(reader: SlowReader, launch: Launch, count: int) -> None:
    """Waits until so many bytes were read, or the job has ended."""
    wait_until(
        lambda: reader.read_bytes > count or launch.process.poll() is not None,
        lambda: f"{reader.read_bytes} bytes\n{launch.stderr}",
    )


def test_a_signal(start: Start, reader: SlowReader) -> None:
    launch = start("--workers", str(WORKERS), "--", *NOISY, stdout=reader.pipe)
    reader.start()
    flows(reader, launch, 200_000)
    began = time.monotonic()
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait() == 130, launch.stderr
    assert time.monotonic() - began < SOON
    assert "killed" not in launch.stderr, launch.stderr
    assert "the reader of our output is slow" in launch.stderr


def test_a_failure(start: Start, reader: SlowReader, tmp_path: pathlib.Path) -> None:
    go = tmp_path / "go"
    words = ["--workers", str(WORKERS), "--", "sh", "-c", FAILS, "sh", str(go)]
    launch = start(*words, stdout=reader.pipe)
    reader.start()
    flows(reader, launch, 200_000)
    go.touch()
    began = time.monotonic()
    assert launch.wait() == 3, launch.stderr
    assert time.monotonic() - began < SOON
    assert "still there after SIGTERM" not in launch.stderr, launch.stderr
    assert f"[worker 0] {LAST_WORDS}\n" in launch.stderr


@pytest.fixture
def many_hosts(tmp_path: pathlib.Path) -> dict[str, str]:
    """The variables with which each name is a host."""
    client = tmp_path / "ssh"
    unshare = " ".join(word for word in OWN_NETWORK if word != "--net")
    client.write_text(CLIENT.format(unshare=unshare))
    client.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_many_hosts(start: Start, reader: SlowReader, many_hosts: dict[str, str]) -> None:
    """Their signs of life are not kept waiting by what they write, and neither are ours."""
    hosts = ",".join(f"h{number}" for number in range(WORKERS))
    words = ["--hosts", hosts, "--coordinator", "127.0.0.1", "--", *NOISY]
    launch = start(*words, variables=many_hosts, stdout=reader.pipe)
    reader.start()
    flows(reader, launch, 2 * WORKERS * 64 * 1024)  # Each host's turn has come twice.
    assert launch.process.poll() is None, launch.stderr
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait() == 130, launch.stderr
    launch.wait_gone(SOON)
    assert "lost" not in launch.stderr, launch.stderr


def test_a_silent_host(start: Start, reader: SlowReader, many_hosts: dict[str, str], tmp_path: pathlib.Path) -> None:
    """It is noticed although what the others write takes all of our time."""
    launch = start(
        "--hosts", "h0,h1,h2,h3", "--coordinator", "127.0.0.1", "--", *NOISY, stdout=reader.pipe, variables=many_hosts
    )
    reader.start()
    flows(reader, launch, 200_000)
    # Of each agent the process that serves us: what runs below it are the processes of the job.
    agents = [pid for pid in launch.processes() if any(_words(child).startswith("yes ") for child in children(pid))]
    assert len(agents) == 4, launch.processes()
    os.kill(agents[0], signal.SIGSTOP)
    try:
        assert launch.wait() == 1, launch.stderr
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agents[0], signal.SIGCONT)
    assert "has not been heard of for 5 s" in launch.stderr, launch.stderr
    launch.wait_gone(SOON)
    for folder in (
        tmp_path / "tmp"
    ).iterdir():  # That of the agent, which could not clean up, nor who cleans up for it.
        shutil.rmtree(folder)


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class StoppedReader:
    """The reading end of a pipe or terminal of which nobody reads."""

    def __init__(self, terminal: bool) -> None:
        self._read, self.pipe = pty.openpty() if terminal else os.pipe()

    def start(self) -> None:
        """Once the writer has the pipe."""
        os.close(self.pipe)

    def stop(self) -> None:
        os.close(self._read)


@pytest.fixture(params=["pipe", "terminal"])
def stopped(request: pytest.FixtureRequest) -> Iterator[StoppedReader]:
    reader = StoppedReader(request.param == "terminal")
    yield reader
    reader.stop()


@pytest.mark.parametrize("hosts", [(), ("--hosts", "h0,h1,h2", "--coordinator", "127.0.0.1")], ids=["here", "hosts"])
def test_a_failure_is_noticed_at_once(
    start: Start,
    stopped: StoppedReader,
    many_hosts: dict[str, str],
    hosts: Sequence[str],
    tmp_path: pathlib.Path,
) -> None:
    """However much output waits, here and on all hosts."""
    go, blocked = tmp_path / "go", tmp_path / "blocked"
    who = "BYTEPS_LOCAL_RANK" if not hosts else "DMLC_WORKER_ID"
    words = [*hosts] if hosts else ["--workers", "3"]
    command = ["sh", "-c", FAILS_WHEN_BLOCKED.replace("WHO", who), "sh", str(go), str(blocked)]
    launch = start(*words, "--", *command, stdout=stopped.pipe, variables=many_hosts if hosts else None)
    stopped.start()
    wait_until(lambda: len(list(tmp_path.glob("blocked.*"))) == 2, lambda: launch.stderr)
    go.touch()
    began = time.monotonic()
    assert launch.wait() == 3, launch.stderr
    # Its own promise is 10 s.
    assert time.monotonic() - began < 25, launch.stderr
    assert f"] {LAST_WORDS}\n" in launch.stderr
    assert "the reader of our output is slow: the rest of it is not shown" in launch.stderr
