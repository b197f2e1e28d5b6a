"""What training does when a link fails: real jobs on a lab, with real processes, servers and transport."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import Lab
from lab.job import Layout, variables_for
from lab.lab import why_not_lose

from launcher.environment import Environment
from launcher.job_folder import JobFolder

SECONDS = 180.0
# From a fault until every member has been told, on a machine that does other things besides: where it is seen at once,
# and where nothing tells but a silence of six seconds (_SIX_SECONDS).
AT_ONCE = 15.0
AT_THE_TIMEOUT = 20.0

# A worker: rounds of a tensor until the file `stop` is there, each checked; says when it begins and how it ends.
_WORKER = """
import os, sys, time
import byteps.torch as bps
import torch

bps.init()
rank, size = bps.rank(), bps.size()
# All stop after the same round: a rank that sees the file says so in the round's first element.
source = torch.arange(int(os.environ["TEST_ELEMENTS"])).remainder(7).float()
print("joined", flush=True)
rounds = 0
try:
    while True:
        tensor = source + rank
        tensor[0] = float(os.path.exists("stop"))
        bps.push_pull_inplace(tensor, average=False, name="x")
        rounds += 1
        expected = source[1:] * size + sum(range(size))
        assert torch.equal(tensor[1:], expected), f"wrong sum in round {rounds}"
        if rounds == 3:
            print("training", flush=True)
        if os.path.exists("mark"):
            print("after the mark", flush=True)
        if tensor[0] > 0:
            break
    print("done", flush=True)
    bps.shutdown()
except bps.BytePSError as error:
    # The tensor is ours again: no process writes into it any more.
    tensor.fill_(-1)
    print("error:", str(error).replace("\\n", " "), flush=True)
    if "TEST_LOOK" in os.environ:
        while not os.path.exists("look"):
            time.sleep(0.05)
        print("untouched" if bool((tensor == -1).all()) else "OVERWRITTEN", flush=True)
    os._exit(3)
"""


class Role:
    """A process of the job, and what it has said."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, output: Path) -> None:
        self.process, self.name, self._output = process, name, output

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")


class Job:
    """A job on a lab, whose roles are started one by one."""

    def __init__(self, lab: Lab, layout: Layout, folder: Path, rate: int | None, **variables: str) -> None:
        self.lab, self._layout, self.folder = lab, layout, folder
        self._token = JobFolder()
        layout.build(lab, rate, {})
        environment = Environment({**_clean_environment(), **variables})
        self._common = variables_for(layout, lab, environment, self._token)
        self.coordinator = self._start("coordinator", "coordinator", {"DMLC_ROLE": "scheduler"}, [_server()])
        self.servers = [
            self._start(f"server {rank}", name, {"DMLC_ROLE": "server", "DMLC_RANK": str(rank)}, [_server()])
            for rank, name in enumerate(layout.server_hosts())
        ]
        self.workers: list[Role] = []
        # Once: a worker that is just reading it would find it empty, and end.
        self._program = folder / "worker.py"
        self._program.write_text(_WORKER)

    def start_worker(self) -> Role:
        """The next one."""
        index = len(self.workers)
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(index), "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
        command = [sys.executable, "-u", str(self._program)]
        self.workers.append(self._start(f"worker {index}", f"worker{index}", own, command))
        return self.workers[-1]

    def _start(self, name: str, host: str, own: dict[str, str], command: list[str]) -> Role:
        output = self.folder / f"{name}.out"
        variables = {"OMP_NUM_THREADS": "1", **self._common, "BYTEPS_HOST_ID": host, **own}
        with open(output, "wb") as file:
            process = self.lab.hosts[host].popen(
                command, env=variables, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        return Role(process, name, output)

    def everything(self) -> str:
        roles = [self.coordinator, *self.servers, *self.workers]
        return "".join(f"---- {role.name} (exit status {role.process.poll()})\n{role.said}" for role in roles)

    def wait_until(self, condition: Callable[[], object], what: str, within: float = SECONDS) -> None:
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within} s: {what}\n{self.everything()}", pytrace=False)
            time.sleep(0.05)

    def wait_said(self, roles: list[Role], text: str, within: float = SECONDS) -> None:
        self.wait_until(lambda: all(text in role.said for role in roles), f"{text!r} of all", within)

    def wait_for_rounds(self, when: str) -> None:
        """Until every worker has begun and ended a round from now on."""
        mark = self.folder / "mark"
        before = [role.said.count("after the mark") for role in self.workers]
        mark.touch()
        self.wait_until(
            lambda: all(role.said.count("after the mark") > count + 1 for role, count in zip(self.workers, before)),
            f"rounds {when}",
        )
        mark.unlink()

    def wait_failed(self, roles: list[Role], within: float) -> list[str]:
        """What those workers say of the failure that every one of them must hear of, within so many seconds."""
        self.wait_said(roles, "error:", within)
        return [role.said.partition("error:")[2] for role in roles]

    def wait_untouched(self) -> None:
        """Until all workers have looked at the tensor that they got back with the error, and are gone."""
        (self.folder / "look").touch()
        self.wait_until(lambda: all(role.process.poll() is not None for role in self.workers), "the end of all")
        for role in self.workers:
            assert "untouched" in role.said, self.everything()
            assert role.process.returncode == 3, self.everything()

    def retransmitted(self) -> int:
        """Segments that TCP has sent again, on all hosts."""
        total = 0
        for host in self.lab.hosts.values():
            lines = host.run(["cat", "/proc/net/snmp"]).splitlines()
            names, values = (line.split() for line in lines if line.startswith("Tcp:"))
            total += int(values[names.index("RetransSegs")])
        return total

    def finish(self) -> None:
        """Lets the workers end, in order."""
        (self.folder / "stop").touch()
        self.wait_until(lambda: all(role.process.poll() is not None for role in self.workers), "the end of all")
        for role in self.workers:
            assert role.process.returncode == 0, self.everything()
            assert "done" in role.said

    def close(self) -> None:
        self._token.remove()


def _clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_", "PS_"))}


def _server() -> str:
    spec = importlib.util.find_spec("byteps")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "byteps_server")


Start = Callable[..., Job]


@pytest.fixture
def start(lab: Lab, tmp_path: Path) -> Iterator[Start]:
    """start(workers, servers, rate=None, **variables): a job of that size, without workers yet."""
    if importlib.util.find_spec("byteps") is None or importlib.util.find_spec("torch") is None:
        pytest.skip("needs the wheel of BytePS and PyTorch in this environment")
    with contextlib.ExitStack() as stack:

        def make(workers: int, servers: int, rate: int | None = None, elements: int = 300_000, **variables: str) -> Job:
            variables.setdefault("BYTEPS_START_TIMEOUT", "150")
            job = Job(lab, Layout(workers, servers), tmp_path, rate, TEST_ELEMENTS=str(elements), **variables)
            stack.callback(job.close)
            return job

        yield make


# What a fault does to one connection of a peer it may do to one of several.
_LANES = pytest.mark.parametrize("lanes", [{}, {"BYTEPS_TCP_LANES": "4"}], ids=["lanes by default", "four lanes"])


@_LANES
def test_training_goes_on_after_two_seconds_without_a_link(start: Start, lanes: dict[str, str]) -> None:
    job = start(2, 2, rate=100_000_000, **lanes)
    for _ in range(2):
        job.start_worker()
    job.wait_said(job.workers, "training")
    for victim in ("server0", "worker1"):
        host = job.lab.hosts[victim]
        host.link_down()
        time.sleep(2)  # the fault itself, not a wait for anything
        host.link_up()
        job.wait_for_rounds(f"after the link of {victim} was down")
    job.finish()


@_LANES
def test_training_goes_on_while_packets_are_lost(start: Start, lanes: dict[str, str]) -> None:
    obstacle = why_not_lose()
    if obstacle is not None:
        pytest.skip(obstacle)
    job = start(2, 2, **lanes)
    for _ in range(2):
        job.start_worker()
    job.wait_said(job.workers, "training")
    for victim in ("server0", "worker1"):
        before = job.retransmitted()
        job.lab.hosts[victim].lose(3)
        # Sums are checked in each round, so what was lost has been sent again.
        job.wait_for_rounds(f"with packets of {victim} lost")
        job.wait_until(lambda before=before: job.retransmitted() > before, f"a packet of {victim} to be lost")
    for victim in ("server0", "worker1"):
        job.lab.hosts[victim].lose(0)
    job.wait_for_rounds("when none is lost any more")
    job.finish()


def test_training_goes_on_with_packets_of_another_size(start: Start) -> None:
    job = start(2, 2)
    for _ in range(2):
        job.start_worker()
    job.wait_said(job.workers, "training")
    for mtu in (900, 1500):
        for host in job.lab.hosts.values():
            host.set_mtu(mtu)
        job.wait_for_rounds(f"with an MTU of {mtu}")
    job.finish()


@_LANES
def test_a_connection_reset_in_the_middle_of_a_write_is_an_error_at_once(start: Start, lanes: dict[str, str]) -> None:
    obstacle = why_not_lose()
    if obstacle is not None:
        pytest.skip(obstacle)
    # Longer than the test's own patience: only the reset can be what they hear of.
    job = start(2, 2, BYTEPS_PEER_TIMEOUT="400", BYTEPS_OP_TIMEOUT="400", TEST_LOOK="1", **lanes)
    for _ in range(2):
        job.start_worker()
    job.wait_said(job.workers, "training")
    job.lab.hosts["server1"].reset()
    for said in job.wait_failed(job.workers, AT_ONCE):
        assert "server 1" in said or "server rank 1" in said, job.everything()
        assert "server1" in said and "lost" in said, job.everything()
    # What was answered so is larger than any record: it was of the bytes of a write, with more of them behind it.
    assert job.lab.hosts["server1"].resets() > 0
    job.wait_untouched()


def test_a_worker_that_starts_a_minute_late_is_waited_for(start: Start) -> None:
    """Twice as long as what makes a member silent, with the default of everything."""
    job = start(2, 1, BYTEPS_LOG_LEVEL="info", BYTEPS_START_TIMEOUT="120")
    first = job.start_worker()
    job.wait_until(lambda: "is worker host 0" in job.coordinator.said, "the first worker's arrival")
    time.sleep(61)  # how late it is, not a wait for anything
    assert first.process.poll() is None and "joined" not in first.said, job.everything()
    job.start_worker()
    job.wait_said(job.workers, "training")
    job.finish()


# How long a silence means death.
_SIX_SECONDS = {"BYTEPS_PEER_TIMEOUT": "6", "BYTEPS_HEARTBEAT_INTERVAL": "1"}

# Of a host, and what is seen there of the cause.
_FAULTS = {
    "silence": "its host or the network is gone",
    "link_down": "this host's own interface eth0 ({}) has no carrier",
    "lose_address": "this host has lost its own address {}",
    "remove": "this host has lost its own address {}",
}


@_LANES
@pytest.mark.parametrize("fault", _FAULTS)
def test_a_silent_server_is_an_error_that_names_it(start: Start, fault: str, lanes: dict[str, str]) -> None:
    job = start(2, 2, TEST_LOOK="1", **_SIX_SECONDS, **lanes)
    for _ in range(2):
        job.start_worker()
    job.wait_said(job.workers, "training")
    getattr(job.lab.hosts["server1"], fault)()
    for said in job.wait_failed(job.workers, AT_THE_TIMEOUT):
        assert "server rank 1" in said and "server1" in said, job.everything()
        assert "silent" in said, job.everything()
    victim = job.servers[1]
    job.wait_until(lambda: victim.process.poll() is not None, "the end of the server that was cut off")
    assert _FAULTS[fault].format(job.lab.hosts["server1"].address) in victim.said, job.everything()
    job.wait_untouched()


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_silent_worker_is_an_error_that_names_it(start: Start, fault: str) -> None:
    job = start(2, 1, TEST_LOOK="1", **_SIX_SECONDS)
    for _ in range(2):
        job.start_worker()
    job.wait_said(job.workers, "training")
    getattr(job.lab.hosts["worker1"], fault)()
    # Both hear of it: the one that is cut off misses the coordinator.
    survivor, victim = job.wait_failed(job.workers, AT_THE_TIMEOUT)
    assert "rank 1" in survivor and "worker1" in survivor, job.everything()
    assert "coordinator" in victim, job.everything()
    assert _FAULTS[fault].format(job.lab.hosts["worker1"].address) in victim, job.everything()
    job.wait_untouched()


def _training_under_a_firewall(start: Start, **options: int) -> Job:
    """Two workers and two servers, where firewalls can be made; nothing but a silence of six seconds tells."""
    obstacle = why_not_lose()
    if obstacle is not None:
        pytest.skip(obstacle)
    job = start(2, 2, TEST_LOOK="1", BYTEPS_OP_TIMEOUT="400", **_SIX_SECONDS, **options)
    for _ in range(2):
        job.start_worker()
    job.wait_said(job.workers, "training")
    return job


def test_a_connection_that_a_firewall_has_made_half_open_is_an_error_that_names_an_end(start: Start) -> None:
    """Between one worker and one server, in one direction: whatever else they and the others have goes on."""
    job = _training_under_a_firewall(start)
    job.lab.hosts["worker1"].deafen(job.lab.hosts["server1"].address)
    for said in job.wait_failed(job.workers, AT_THE_TIMEOUT):
        assert "no sign of life" in said, job.everything()
        # Either end may be the first to miss the other.
        assert "rank 1" in said and ("server1" in said or "worker1" in said), job.everything()
    job.wait_untouched()


def test_a_worker_that_no_longer_hears_the_coordinator_is_an_error_that_says_so(start: Start) -> None:
    """Half open between these two alone: its last words are stuck behind what is not acknowledged. The others hear what
    the coordinator knows."""
    job = _training_under_a_firewall(start)
    job.lab.hosts["worker1"].deafen(job.lab.hosts["coordinator"].address)
    other, victim = job.wait_failed(job.workers, AT_THE_TIMEOUT)
    assert "coordinator" in victim and "has been silent for 6" in victim, job.everything()
    assert "rank 1" in other and "worker1" in other, job.everything()
    assert "the coordinator has not heard of it for" in other or "silent for 6" in other, job.everything()
    job.wait_untouched()


def test_a_host_that_large_packets_no_longer_reach_is_an_error_that_names_the_mtu(start: Start) -> None:
    """The path takes smaller packets than the others know: signs of life would pass, but they are behind results that
    do not."""
    job = _training_under_a_firewall(start, elements=2_000_000)
    job.lab.hosts["worker1"].lose_large(900)
    for said in job.wait_failed(job.workers, AT_THE_TIMEOUT):
        assert "no sign of life" in said and "MTU" in said, job.everything()
        assert "rank 1" in said and ("server" in said or "worker1" in said), job.everything()
    job.wait_untouched()


@pytest.mark.parametrize("kind", ["server", "worker"])
def test_who_was_stopped_for_too_long_comes_back_to_nothing(start: Start, kind: str) -> None:
    """The others name it at the timeout. When it goes on it ends, and writes into no member's memory."""
    job = start(3, 2, elements=2_000_000, TEST_LOOK="1", **_SIX_SECONDS)
    for _ in range(3):
        job.start_worker()
    job.wait_said(job.workers, "training")
    victim = job.servers[1] if kind == "server" else job.workers[1]
    others = [role for role in job.workers if role is not victim]
    os.kill(victim.process.pid, signal.SIGSTOP)
    try:
        for said in job.wait_failed(others, AT_THE_TIMEOUT):
            assert "rank 1" in said and f"{kind}1" in said, job.everything()
    finally:
        os.kill(victim.process.pid, signal.SIGCONT)
    if kind == "server":
        job.wait_until(lambda: victim.process.poll() is not None, "the end of the server that was stopped")
    else:
        job.wait_failed([victim], AT_ONCE)
    job.wait_untouched()


def test_a_slow_server_is_named(start: Start) -> None:
    """One of eight, its link at a tenth. A worker's own link is shared by all of its partitions: with two workers a
    server's partitions take so many times longer as its link is slower, divided by four."""
    job = start(2, 8, rate=50_000_000, elements=500_000)
    job.lab.hosts["server5"].set_rate(5_000_000)
    for _ in range(2):
        job.start_worker()
    job.wait_until(lambda: any(re.search(r"server 5 \(.* is slow: ", role.said) for role in job.workers), "its name")
    job.finish()
    named = {name for role in job.workers for name in re.findall(r"(server \d+) \(.* is slow: ", role.said)}
    assert named == {"server 5"}, job.everything()
