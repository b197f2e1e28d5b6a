"""`netlab run`, in real processes; at its end nothing of it is left, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NETLAB = [sys.executable, str(ROOT / "tools" / "netlab.py"), "run"]
SECONDS = 60.0
COOKIE = "NETLAB_TEST_COOKIE"

# What stands for byteps_server where the job itself does not matter.
_SERVICE = f"""#!{sys.executable}
import os, signal, socket
print(os.environ["DMLC_ROLE"], "on", socket.gethostname(), flush=True)
open(os.environ["DMLC_ROLE"] + os.environ.get("DMLC_RANK", ""), "w")  # in the folder that all share
signal.sigwait([signal.SIGTERM])
"""

# The line of a shell, for a worker: waits until these have started.
_WAIT = "for each in {}; do until [ -e $each ]; do sleep 0.05; done; done; "


def _default_signals() -> None:
    """In a child: tests that run in the background, or under nohup, ignore some of these, and so would it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _after(before: str) -> list[str]:
    """The command of netlab, after this line of Python."""
    program = f"import os, runpy, sys\n{before}\nsys.argv[0] = {NETLAB[1]!r}\n"
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return [sys.executable, "-c", program, *NETLAB[2:]]


class Run:
    """A run of netlab, and all processes that descend from it."""

    def __init__(self, folder: Path, command: list[str], variables: dict[str, str]) -> None:
        self.folder = folder
        self.cookie = uuid.uuid4().hex
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_"))}
        environment |= {COOKIE: self.cookie, "TMPDIR": str(folder / "tmp"), **variables}
        (folder / "tmp").mkdir()
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                preexec_fn=_default_signals,
            )

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def said(self) -> str:
        return f"out:\n{self.out}\nerr:\n{self.err}"

    def wait(self) -> int:
        return self.process.wait(SECONDS)

    def wait_for(self, text: str) -> None:
        self._until(lambda: text in self.out, f"{text!r}")

    def wait_for_measurement(self) -> None:
        """Until the raw socket sends."""
        self._until(lambda: any("raw.py" in words and "serve" not in words for words in self._commands()), "raw.py")

    def wait_for_setup(self) -> None:
        """Until the guardian passes signals on: to the supervisor, which makes the hosts. Before that a signal ends
        netlab itself."""
        self._until(self._passes_signals_on, "the guardian's signal handlers")

    def _passes_signals_on(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (caught,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def _commands(self) -> list[str]:
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        return found

    def processes(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.cookie.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def wait_gone(self) -> None:
        self._until(lambda: not self.processes(), "the end of all processes")

    def _until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}\n{self.said}"
            time.sleep(0.02)


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path, namespaces: None) -> Iterator[Start]:
    service = tmp_path / "service"
    service.write_text(_SERVICE)
    service.chmod(0o755)
    runs: list[Run] = []

    def make(*words: str, before: str = "", **variables: str) -> Run:
        variables.setdefault("BYTEPS_SERVER_BINARY", str(service))
        runs.append(Run(tmp_path, [*(_after(before) if before else NETLAB), *words], variables))
        return runs[-1]

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
        run.wait_gone()
    # The folder of the token, unless netlab could do nothing about it.
    left = [path for run in runs for path in (run.folder / "tmp").iterdir() if run.process.returncode >= 0]
    assert not left, left


def test_each_role_is_on_its_host(start: Start) -> None:
    command = _WAIT.format("scheduler server0") + "echo worker $DMLC_WORKER_ID of $DMLC_NUM_WORKER on $(hostname);"
    command += "wc -c <$BYTEPS_JOB_TOKEN_FILE"
    run = start("--hosts", "2", "--servers", "1", "--rate", "100mbit", "--raw-bytes", "1000000", "--counters", command)
    assert run.wait() == 0, run.said
    for line in (
        "[worker 0.0] worker 0 of 2 on worker0",
        "[worker 1.0] worker 1 of 2 on worker1",
        "[worker 0.0] 65",
        "[server 0] server on server0",
        "[coordinator] scheduler on coordinator",
    ):
        assert line in run.out.splitlines(), run.said
    assert "raw socket: 1000000 bytes in" in run.err
    assert "link of server0: sent" in run.err


def test_colocated_servers_share_the_hosts_of_workers(start: Start) -> None:
    command = _WAIT.format("server0 server1 server2") + "echo $BYTEPS_HOST_ID of $DMLC_NUM_SERVER servers"
    run = start("--hosts", "2", "--colocate", "--servers", "1", "--raw-bytes", "0", command)
    assert run.wait() == 0, run.said
    for line in (
        "[worker 1.0] worker1 of 3 servers",
        "[server 0] server on worker0",
        "[server 1] server on worker1",
        "[server 2] server on server2",
    ):
        assert line in run.out.splitlines(), run.said


def test_hosts_on_loopback_have_one_link(start: Start) -> None:
    command = (
        _WAIT.format("server0 server1") + "echo on $(hostname), link ${BYTEPS_HOST_ID-shared}, $GLOO_SOCKET_IFNAME"
    )
    run = start("--loopback", "--hosts", "2", "--colocate", command)
    assert run.wait() == 0, run.said
    for line in (
        "[worker 0.0] on worker0, link shared, lo",
        "[worker 1.0] on worker1, link shared, lo",
        "[server 1] server on worker1",
        "[coordinator] scheduler on coordinator",
    ):
        assert line in run.out.splitlines(), run.said
    assert "raw socket" not in run.err


def test_the_first_failure_is_the_exit_code(start: Start) -> None:
    run = start("--raw-bytes", "0", "--", "sh", "-c", "test $DMLC_WORKER_ID = 0 && exit 7; exec sleep 1000")
    assert run.wait() == 7, run.said
    assert "worker 0.0 exited with code 7" in run.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(start: Start, number: signal.Signals) -> None:
    run = start("--raw-bytes", "0", "--", "sh", "-c", "sleep 1000 & echo here; wait")
    run.wait_for("[worker 1.0] here")
    run.process.send_signal(number)
    assert run.wait() == 128 + number, run.said
    assert not run.processes(), run.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_measurement(start: Start, number: signal.Signals) -> None:
    run = start("--rate", "1mbit", "--raw-bytes", "20000000", "--", "echo", "started")  # for eight minutes
    run.wait_for_measurement()
    run.process.send_signal(number)
    assert run.wait() == 128 + number, run.said
    assert not run.processes(), run.said
    assert (run.out, run.err) == ("", f"netlab: {number.name}: ending the job\n")


def test_a_kill_ends_the_measurement(start: Start) -> None:
    run = start("--rate", "1mbit", "--raw-bytes", "20000000", "--", "echo", "started")  # for eight minutes
    run.wait_for_measurement()
    run.process.kill()
    run.wait()
    run.wait_gone()
    assert not list((run.folder / "tmp").iterdir())


def test_a_signal_ends_the_making_of_hosts(start: Start) -> None:
    run = start("--hosts", "60", "--raw-bytes", "200000", "--", "echo", "started")
    run.wait_for_setup()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM, run.said
    assert not run.processes(), run.said
    assert (run.out, run.err) == ("", "netlab: SIGTERM: ending the job\n")


def test_a_raw_socket_that_takes_too_long_is_a_sentence(start: Start) -> None:
    folders = f"sys.path[:0] = {[str(ROOT), str(ROOT / 'tools')]!r}"
    before = f"{folders}\nfrom lab import main\nmain._raw_limit = lambda seconds: 0.5"
    run = start("--rate", "1mbit", "--raw-bytes", "20000000", "--", "echo", "started", before=before)
    assert run.wait() == 1, run.said
    assert not run.processes(), run.said
    assert run.out == ""
    assert run.err.startswith("netlab: the raw socket from worker0 to server1 cannot be measured: ")
    assert run.err.endswith(": not done within 0.5 s\n") and run.err.count("\n") == 1


def test_bounds_are_not_those_of_a_slowed_link(start: Start) -> None:
    words = ["--rate", "100mbit", "--slow", "worker0=8mbit", "--raw-bytes", "2000000"]
    run = start(*words, _WAIT.format("scheduler server0 server1") + "echo $NETLAB_BYTES_PER_SECOND")
    assert run.wait() == 0, run.said
    told = [float(line.split()[-1]) for line in run.out.splitlines() if line.startswith("[worker")]
    assert len(told) == 2 and min(told) > 2 * 8e6 / 8, run.said


@pytest.mark.parametrize("whom", ["netlab", "supervisor"])
def test_nothing_survives_a_kill(start: Start, whom: str) -> None:
    run = start("--raw-bytes", "0", "--", "sh", "-c", "sleep 1000 & echo here; wait")
    run.wait_for("[worker 1.0] here")
    victim = run.process.pid
    if whom == "supervisor":
        # Beside it is the process that removes the job's folder: another program.
        children = Path(f"/proc/{victim}/task/{victim}/children").read_text().split()
        program = Path(f"/proc/{victim}/cmdline").read_bytes()
        (victim,) = (int(child) for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == program)
    os.kill(victim, signal.SIGKILL)
    run.wait()
    run.wait_gone()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "no command to run"),
        (["--rate", "fast", "true"], "is no rate"),
        (["--servers", "0", "true"], "no servers"),
        (["--slow", "server7=1mbit", "true"], "--slow server7: there are worker0, worker1, server0, server1"),
        (["--hosts", "0", "true"], "must be at least 1"),
        (["--servers", "99999999999", "true"], "must be at most 1000"),
        (["--loopback", "--rate", "1mbit", "true"], "--loopback has no links"),
        (["--loopback", "--slow", "server0=1mbit", "true"], "--loopback has no links"),
        (["--loopback", "--counters", "true"], "--loopback has no links"),
        (["--loopback", "--mtu", "9000", "true"], "--loopback has no links"),
        (["--loopback", "--raw-bytes", "200000", "true"], "--loopback has no links"),
        (["--sysctl", "kernel.hostname=x", "true"], "'kernel.hostname=x' is no sysctl of a network"),
        (["--raw-bytes", "199999", "true"], "199999: must be 0 or at least 200000"),
        (["--mtu", "65536", "true"], "65536: must be 576 to 65535"),
        (["--kill-after", "-1", "true"], "-1: must be 0 to 3600"),
        (["--kill-after", "nan", "true"], "nan: must be 0 to 3600"),
        (["--rate", "100mbit", "--slow", "server0=1gbit", "true"], "--slow server0: 1000 Mbit/s is not slower"),
        (["--slow", "server0=1mbit", "--slow", "server0=2mbit", "true"], "--slow server0: named twice"),
        (["no-such-program"], "no such program: no-such-program"),
    ],
)
def test_wrong_calls_are_errors(start: Start, words: list[str], complaint: str) -> None:
    run = start("--raw-bytes", "0", *words)
    assert run.wait() in (2, 127)
    assert complaint in run.err
    assert "Traceback" not in run.err


def _say(before: str) -> subprocess.CompletedProcess[str]:
    """A run of netlab, after this line of Python."""
    return subprocess.run(
        [*_after(before), "--raw-bytes", "0", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_without_root_it_is_a_sentence() -> None:
    done = _say("os.geteuid = lambda: 1000")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "netlab: netlab needs root, to make network namespaces\n"


def test_a_root_that_may_make_no_namespaces_is_a_sentence(namespaces: None) -> None:
    """As in a container. PR_CAPBSET_DROP of CAP_SYS_ADMIN, and an exec, which takes it away."""
    done = _say(
        "import ctypes\n"
        "if 'again' not in os.environ:\n"
        "    assert ctypes.CDLL(None).prctl(24, 21, 0, 0, 0) == 0\n"
        "    os.execve(sys.executable, sys.orig_argv, {**os.environ, 'again': ''})"
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr == (
        "netlab: netlab cannot make a host here: [Errno 1] cannot make namespaces: Operation not permitted\n"
    )
