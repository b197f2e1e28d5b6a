"""Under the real torchrun: byteps.init() finds the others, restarts included, and nothing is left behind."""

from __future__ import annotations

import atexit
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

import pytest
from launching import Launch, Spawn, free_port, needs_package, wait_until
from own_time import OwnTime

JOINER = str(pathlib.Path(__file__).with_name("joiner.py"))

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    needs_package,
]


def torchrun(spawn: Spawn, *words: str, **variables: str) -> Launch:
    # It leaves a folder of its own behind.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bps-torchrun-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    return spawn(*command, variables={"TMPDIR": str(folder), **variables})


def ranks(text: str) -> list[str]:
    return sorted(re.findall(r"^rank (?:.*), launcher \d+$", text, re.MULTILINE))


def test_one_host(spawn: Spawn) -> None:
    job = torchrun(spawn, "--nproc-per-node", "3", JOINER, "3")
    assert job.wait() == 0, job.stderr
    assert ranks(job.stdout) == [f"rank {r} of 3, local {r} of 3, servers 0, launcher {r}" for r in range(3)]
    assert job.stdout.count("done") == 3
    job.wait_gone(10)


def test_one_worker_is_alone(spawn: Spawn) -> None:
    job = torchrun(spawn, "--nproc-per-node", "1", JOINER, "1")
    assert job.wait() == 0, job.stderr
    assert "rank 0 of 1, local 0 of 1, servers 0" in job.stdout


def two_agents(spawn: Spawn, *words: str, restarts: int = 0, **variables: str) -> list[Launch]:
    where = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test"]
    return [torchrun(spawn, *where, *meet, JOINER, *words, **variables) for _ in range(2)]


def test_two_agents_are_two_hosts(spawn: Spawn) -> None:
    """Each has a server beside its first worker."""
    jobs = two_agents(spawn, "3")
    for job in jobs:
        assert job.wait() == 0, job.stderr
    found = ranks("".join(job.stdout for job in jobs))
    assert [line.partition(", servers")[0] for line in found] == [
        f"rank {r} of 4, local {r % 2} of 2" for r in range(4)
    ]
    assert all(line.endswith(f"launcher {rank}") for rank, line in enumerate(found))
    for job in jobs:
        job.wait_gone(10)


def test_nodes_that_know_their_rank(spawn: Spawn) -> None:
    """Without a rendezvous backend, as Kubeflow starts it (there by PET_* variables)."""
    port = str(free_port())
    jobs = []
    for node in ("0", "1"):
        known = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": node}
        known.update(PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=port)
        jobs.append(torchrun(spawn, JOINER, "2", **known))
    for job in jobs:
        assert job.wait() == 0, job.stderr
    assert len(ranks("".join(job.stdout for job in jobs))) == 2
    for job in jobs:
        job.wait_gone(10)


@pytest.mark.parametrize("agents", [1, 2])
def test_a_restart(spawn: Spawn, tmp_path: pathlib.Path, agents: int) -> None:
    """The store still has what the first attempt has left; nobody believes it."""
    words = ["3", "--fail-once", str(tmp_path / "failed")]
    if agents == 1:
        jobs = [torchrun(spawn, "--nproc-per-node", "3", "--max-restarts", "1", JOINER, *words)]
    else:
        jobs = two_agents(spawn, *words, restarts=1)
    for job in jobs:
        assert job.wait() == 0, job.stderr
    assert (tmp_path / "failed").exists()
    output = "".join(job.stdout for job in jobs)
    assert output.count("done") == (3 if agents == 1 else 4), output
    for job in jobs:
        job.wait_gone(10)


def test_a_failed_worker_ends_the_others(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    job = torchrun(spawn, "--nproc-per-node", "3", JOINER, "0", "--fail-once", str(tmp_path / "failed"))
    assert job.wait() != 0
    job.wait_gone(15)


@pytest.mark.parametrize("victim", ["agent", "coordinator", "worker"])
def test_whatever_is_killed_nothing_is_left(spawn: Spawn, victim: str) -> None:
    job = torchrun(spawn, "--nproc-per-node", "2", JOINER, "0")
    job.wait_for("round 1", 2)
    pid = job.process.pid
    if victim != "agent":
        wanted = "byteps_server" if victim == "coordinator" else "joiner.py 0"
        pid = next(pid for pid, words in job.processes().items() if wanted in words and "distributed" not in words)
    os.kill(pid, signal.SIGKILL)
    assert job.wait(30) != 0
    wait_until(lambda: not job.processes(), lambda: f"left behind: {job.processes()}", 15)


def test_an_agent_without_a_server_is_killed(spawn: Spawn) -> None:
    """Its workers end, also one that is somewhere in the user's code, and the other agent's by their errors."""
    jobs = two_agents(spawn, "0", "--stuck", "3", DMLC_NUM_SERVER="1")
    wait_until(lambda: sum(job.stdout.count("round 0") for job in jobs) == 4, lambda: output(jobs))
    (alone,) = (job for job in jobs if not any("byteps_server" in words for words in job.processes().values()))
    alone.wait_for("stuck")
    clock = OwnTime(lambda: [pid for job in jobs for pid in job.processes()])
    os.kill(alone.process.pid, signal.SIGKILL)
    clock.wait_until(
        lambda: not any(job.process.poll() is None or job.processes() for job in jobs),
        15.0,
        lambda: f"left behind: {[job.processes() for job in jobs]}\n{output(jobs)}",
    )
    assert all(job.wait() != 0 for job in jobs)
    members = r"worker rank 2 \(host \S+, pid \d+\) and worker rank 3 \(host \S+, pid \d+\)"
    assert re.search(f"what has started {members} is gone: ending them", alone.stderr), alone.stderr
    (other,) = (job for job in jobs if job is not alone)
    assert re.search(r"worker rank [23] \(host", other.stderr), other.stderr


def output(jobs: list[Launch]) -> str:
    return "\n".join(job.stdout + job.stderr for job in jobs)


def test_it_can_be_switched_off(spawn: Spawn) -> None:
    job = torchrun(spawn, "--nproc-per-node", "2", JOINER, "1", BYTEPS_DETECT_LAUNCHER="0")
    assert job.wait() == 0, job.stderr
    assert job.stdout.count("rank 0 of 1") == 2
