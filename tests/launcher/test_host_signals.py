"""Signals and pauses of a job over several hosts, by real ssh."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, TRAINER, Launch, Spawn, wait_until
from ssh_hosts import SshHosts

SMALL = "1000"

# Takes its time to end in order; says what it hears.
SAVES = """\
import signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
time.sleep(1000)
"""

# Ends by itself when it was warned; a child of its own does not expect that.
WARNED = """\
import signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
numbers = (signal.SIGUSR1, signal.SIGUSR2)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("trains", flush=True)
for number in numbers:
    assert signal.sigwait((number,)) == number
    print("warned by", number.name, flush=True)
assert child.poll() is None
child.kill()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


@pytest.fixture
def launch(spawn: Spawn, hosts: SshHosts, real: dict[str, str]) -> Iterator[Callable[..., Launch]]:
    """Starts bpslaunch where the user sits."""

    def run(*words: str) -> Launch:
        options = ["--ssh-args", hosts.ssh_args, "--hosts", "lh1,lh2", *words]
        return spawn(*hosts.here, *BPSLAUNCH, *options, variables=real)

    yield run
    hosts.wait_empty()


def agents(hosts: SshHosts, host: int) -> list[int]:
    """An agent with the two processes in front of it, the first one first."""
    return sorted(pid for pid, words in hosts[host].processes().items() if "--agent" in words and "sh -c" not in words)


def test_warnings_reach_the_workers(launch: Callable[..., Launch]) -> None:
    job = launch("--", sys.executable, "-c", WARNED)
    job.wait_for("trains", 2)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        job.process.send_signal(number)
        job.wait_for(f"warned by {number.name}", 2)
    assert job.wait() == 0 and job.stderr == "", job.stderr


def test_a_warning_of_an_agent(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    """As Slurm sends it to all processes of a step."""
    job = launch("--", sys.executable, "-c", WARNED)
    job.wait_for("trains", 2)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        for host in (0, 1):
            for pid in [pid for pid, words in hosts[host].processes().items() if "--agent" in words]:
                os.kill(pid, number)
        job.wait_for(f"warned by {number.name}", 2)
    assert job.wait() == 0 and job.stderr == "", job.stderr


def test_a_signal_to_an_agent_leaves_time(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    """As Slurm sends it to all processes of a step."""
    job = launch("--kill-after", "15", "--", sys.executable, "-c", SAVES)
    job.wait_for("trains", 2)
    for pid in agents(hosts, 1):
        os.kill(pid, signal.SIGTERM)
    assert job.wait(40) == 128 + signal.SIGTERM, job.stderr
    assert "[worker 1.0] saved" in job.stdout and "[worker 0.0] saved" in job.stdout, job.stdout
    assert "host lh2 was told to end by SIGTERM (scancel, a time limit, a shutdown): ending the job" in job.stderr
    assert "was killed by" not in job.stderr, job.stderr


@pytest.mark.parametrize("victim", ["bpslaunch", "guardian"])
def test_nobody_is_left_to_leave_time_for(launch: Callable[..., Launch], hosts: SshHosts, victim: str) -> None:
    """An agent that was told to end, and gives its worker ten minutes, still sees that it is alone."""
    job = launch("--kill-after", "600", "--", sys.executable, "-c", SAVES.replace("sleep(5)", "sleep(1000)"))
    job.wait_for("trains", 2)
    for pid in agents(hosts, 1):
        os.kill(pid, signal.SIGTERM)
    job.wait_for("[worker 1.0] saving")
    if victim == "guardian":
        os.kill(agents(hosts, 1)[0], signal.SIGKILL)
        wait_until(lambda: not hosts[1].processes(), lambda: f"still there: {hosts[1].processes()}", 60)
    for pid, words in job.processes().items():
        if "launch.py" in words and "--agent" not in words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not hosts.processes(), lambda: f"still there: {hosts.processes()}", 60)
    assert job.wait() == -signal.SIGKILL
    job.wait_gone()


def test_a_pause_of_all(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    """Longer than the silence after which a host is taken for lost: a suspended job goes on."""
    job = launch("--", *TRAINER, "0", SMALL)
    job.wait_for("round 1", 2)
    there = [pid for host in (0, 1) for pid in (*hosts[host].processes(), *hosts[host].sessions())]
    everything = [*job.processes(), *there]
    for number, seconds in ((signal.SIGSTOP, 8.0), (signal.SIGCONT, 2.0)):
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(seconds)
    seen = job.stdout.count("round ")
    wait_until(lambda: job.stdout.count("round ") > seen + 2 or job.process.poll() is not None, lambda: job.stderr)
    time.sleep(6)  # longer than a host may be silent
    assert job.process.poll() is None, job.stderr
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(20) == 128 + signal.SIGTERM
    # A trainer may hear of the end of another before its own signal.
    said = [line for line in job.stderr.splitlines() if line.startswith("bpslaunch: ")]
    assert said == ["bpslaunch: SIGTERM: ending the job"], job.stderr


def test_a_pause_of_bpslaunch_alone_is_named(launch: Callable[..., Launch], hosts: SshHosts) -> None:
    """The agents end what they have started; what is said is not that a worker was killed."""
    job = launch("--", *TRAINER, "0", SMALL)
    job.wait_for("round 1", 2)
    ours = list(job.processes())
    for pid in ours:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not hosts.processes(), lambda: f"still there: {hosts.processes()}", 30)
    for pid in ours:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert job.wait(30) == 1, job.stderr
    # A trainer of the other host may hear of the end of the coordinator.
    said = [line for line in job.stderr.splitlines() if line.startswith("bpslaunch: ")]
    assert re.search("host lh[12] has not heard of bpslaunch for 5 s", said[0]), job.stderr
    assert not any("SIGTERM" in line for line in said), job.stderr
