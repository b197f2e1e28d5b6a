"""Under the real Slurm: tasks of srun that find each other, and bpslaunch in an allocation."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from launching import Launch, Spawn
from slurm_cluster import SlurmCluster

JOINER = [sys.executable, str(pathlib.Path(__file__).with_name("joiner.py"))]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("byteps") is None, reason="the package byteps is not installed"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 2) as slurm:
        yield slurm


@pytest.fixture
def srun(spawn: Spawn, slurm: SlurmCluster) -> Iterator[Callable[..., Launch]]:
    def run(*words: str, **variables: str) -> Launch:
        return spawn(*slurm.here, "srun", *words, variables={**slurm.variables, **variables})

    yield run
    slurm.hosts.wait_empty()


def places(text: str) -> list[str]:
    return sorted(re.findall(r"^rank .*, launcher \d+$", text, re.MULTILINE))


@pytest.mark.parametrize("kind", ["none", "pmi2"])
def test_tasks(srun: Callable[..., Launch], kind: str) -> None:
    job = srun(f"--mpi={kind}", "-N2", "--ntasks-per-node=2", *JOINER, "3")
    assert job.wait() == 0, job.stderr
    assert places(job.stdout) == [f"rank {r} of 4, local {r % 2} of 2, servers 2, launcher {r}" for r in range(4)]


def test_tasks_that_go_round_the_nodes(srun: Callable[..., Launch]) -> None:
    job = srun("-N2", "-n4", "--distribution=cyclic", *JOINER, "3")
    assert job.wait() == 0, job.stderr
    assert [line.partition(",")[0] + line[-11:] for line in places(job.stdout)] == [
        f"rank {r} of 4 launcher {r}" for r in range(4)
    ]


def test_no_folder_is_left(srun: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    job = srun("-N2", "-n2", *JOINER, "1", BYTEPS_RENDEZVOUS_DIR=str(tmp_path / "meet"))
    assert job.wait() == 0, job.stderr
    assert not list((tmp_path / "meet").iterdir())


@pytest.mark.parametrize("victim", ["srun", "worker", "server"])
def test_whatever_is_killed_nothing_is_left(srun: Callable[..., Launch], slurm: SlurmCluster, victim: str) -> None:
    job = srun("--kill-on-bad-exit=1", "-N2", "-n2", *JOINER, "0")
    job.wait_for("round 1", 2)
    if victim == "srun":
        job.process.kill()
    else:
        wanted = "byteps_server" if victim == "server" else "joiner.py 0"
        processes = slurm.hosts[1].processes()
        os.kill(next(pid for pid, words in processes.items() if wanted in words), signal.SIGKILL)
    assert job.wait(30) != 0
