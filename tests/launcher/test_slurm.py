"""Under the real Slurm: tasks of srun that find each other, and bpslaunch in an allocation."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, Launch, Spawn, wait_until
from slurm_cluster import SlurmCluster

from launcher.failure import LaunchError
from launcher.remote import slurm_allocation

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


@pytest.mark.parametrize("kind", ["none", "pmi2", "pmix"])
def test_tasks(srun: Callable[..., Launch], slurm: SlurmCluster, kind: str) -> None:
    if kind not in slurm.run("srun", "--mpi=list").split():
        pytest.skip(f"Slurm has no plugin {kind} here")
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


# ---- bpslaunch ----

TRAINER = [sys.executable, str(pathlib.Path(__file__).with_name("trainer.py"))]


@pytest.fixture
def salloc(spawn: Spawn, slurm: SlurmCluster, real: dict[str, str]) -> Iterator[Callable[..., Launch]]:
    def run(*words: str, stdin: int = subprocess.DEVNULL) -> Launch:
        return spawn(*slurm.here, "salloc", *words, variables={**slurm.variables, **real}, stdin=stdin)

    yield run
    slurm.hosts.wait_empty()


def test_bpslaunch_in_an_allocation(salloc: Callable[..., Launch]) -> None:
    job = salloc("-N2", "--ntasks-per-node=2", *BPSLAUNCH, "--verbose", "--", *TRAINER, "3", "100000")
    assert job.wait() == 0, job.stderr
    for rank in range(4):
        assert f"[worker {rank // 2}.{rank % 2}] rank {rank} of 4, local {rank % 2} of 2" in job.stdout
    assert "server 1: pid " in job.stderr


def test_bpslaunch_in_a_heterogeneous_job(
    spawn: Spawn, slurm: SlurmCluster, real: dict[str, str], tmp_path: pathlib.Path
) -> None:
    """The first component has the workers, the second the servers."""
    script = tmp_path / "script"
    command = shlex.join([*BPSLAUNCH, "--verbose", "--", *TRAINER, "3", "1000"])
    script.write_text(f"#!/bin/sh\n#SBATCH -N1 --ntasks-per-node=2\n#SBATCH hetjob\n#SBATCH -N1\n{command}\n")
    output = tmp_path / "output"
    variables = {**slurm.variables, **real}
    job = spawn(*slurm.here, "sbatch", "--wait", "-o", str(output), str(script), variables=variables)
    assert job.wait() == 0, job.stderr + output.read_text()
    text = output.read_text()
    assert "server 0: pid " in text and "[worker 1] rank 1 of 2, local 1 of 2" in text
    slurm.hosts.wait_empty()


def test_bpslaunch_as_tasks(srun: Callable[..., Launch], real: dict[str, str]) -> None:
    """A trainer in C has its variables from bpslaunch, where one in Python needs none."""
    job = srun("-N2", "-n2", *BPSLAUNCH, "--", *TRAINER, "3", "1000", **real)
    assert job.wait() == 0, job.stderr
    for rank in range(2):
        assert f"[worker {rank}] rank {rank} of 2, local 0 of 1" in job.stdout


def test_an_allocation_whose_programs_are_not_here(spawn: Spawn, real: dict[str, str]) -> None:
    """As in a container within a job: the launch is one of this host."""
    variables = {
        **real,
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "a[1-2]",
        "PATH": str(pathlib.Path(sys.executable).parent),
    }
    job = spawn(*BPSLAUNCH, "--", *TRAINER, "1", "10", variables=variables)
    assert job.wait() == 0, job.stderr
    assert "rank 0 of 1" in job.stdout


def test_half_of_an_allocation_is_missing(salloc: Callable[..., Launch], slurm: SlurmCluster) -> None:
    """A node has died since: nothing trains."""
    wait = "import sys; print('allocated', flush=True); sys.stdin.readline()"
    script = f'{sys.executable} -c "{wait}"; exec {shlex.join(BPSLAUNCH)} -- echo trains'
    read, write = os.pipe()
    job = salloc("-N2", "--ntasks-per-node=1", "sh", "-c", script, stdin=read)
    os.close(read)
    job.wait_for("allocated")
    slurm.run("scontrol", "update", "nodename=ln2", "state=down", "reason=test")
    try:
        os.close(write)
        assert job.wait(90) != 0
        assert "trains" not in job.stdout
        assert "ln2" in job.stderr, job.stderr
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # It may have come back by itself.
            slurm.run("scontrol", "update", "nodename=ln2", "state=resume")
        slurm.wait_ready()


def test_scancel_ends_the_job(salloc: Callable[..., Launch], slurm: SlurmCluster) -> None:
    job = salloc("-N2", "--ntasks-per-node=1", *BPSLAUNCH, "--", *TRAINER, "0", "1000")
    job.wait_for("round 2", 2)
    slurm.run("scancel", "--user=root")
    assert job.wait(30) != 0
    job.wait_gone(15)


def test_a_requeued_job_starts_anew(
    spawn: Spawn, slurm: SlurmCluster, real: dict[str, str], tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "script"
    bpslaunch, trainer = shlex.join(BPSLAUNCH), shlex.join(TRAINER)
    script.write_text(
        "#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=1 --requeue --open-mode=append\n"
        'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then rounds=0; else rounds=3; fi\n'
        f"exec {bpslaunch} -- {trainer} $rounds 1000\n"
    )
    output = tmp_path / "output"
    batch = spawn(
        *(*slurm.here, "sbatch", "--parsable", "-o", str(output), str(script)), variables={**slurm.variables, **real}
    )
    assert batch.wait() == 0, batch.stderr
    number = batch.stdout.strip()

    def said(text: str, count: int) -> bool:
        return output.exists() and output.read_text().count(text) >= count

    wait_until(lambda: said("round 2", 2), lambda: f"no rounds: {output}")
    slurm.run("scontrol", "requeue", number)

    def ended() -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):  # Slurm lets a requeued job rest for two minutes.
            slurm.run("scontrol", "update", f"jobid={number}", "starttime=now")
        return "COMPLETED" in slurm.run("scontrol", "show", "job", number)

    wait_until(ended, lambda: output.read_text()[-5000:])
    assert said("done", 2) and "rank 1 of 2" in output.read_text().rpartition("round")[0]
    slurm.hosts.wait_empty()


@pytest.mark.parametrize(
    "text, names",
    [
        ("a[1-2,04],b", ["a1", "a2", "a04", "b"]),
        ("r[0-1]n[0-1]", ["r0n0", "r0n1", "r1n0", "r1n1"]),
        ("gpu-[08-10]", ["gpu-08", "gpu-09", "gpu-10"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert slurm_allocation.expand_nodes(text) == names


def test_counts_of_tasks() -> None:
    assert slurm_allocation.expand_counts("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(LaunchError):
        slurm_allocation.expand_counts("two")
