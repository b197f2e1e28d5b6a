"""Under the real mpirun of Open MPI (PMIx) and of MPICH (PMI): byteps.init() finds the others, on one host and several.

Nothing of MPI is linked or imported: the trainers know their launcher by its variables.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from launching import Launch, Spawn, wait_until
from ssh_hosts import SshHosts

JOINER = [sys.executable, str(pathlib.Path(__file__).with_name("joiner.py"))]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("byteps") is None, reason="the package byteps is not installed"
)

KINDS = ["openmpi", "mpich"]


def mpirun(kind: str) -> list[str]:
    """The program and what it needs here; skips the test where it is not installed."""
    program = shutil.which(f"mpirun.{kind}")
    if program is None:
        pytest.skip(f"mpirun of {kind} is not here: Debian's package {'openmpi-bin' if kind == 'openmpi' else 'mpich'}")
    if kind == "openmpi":
        return [program, "--allow-run-as-root", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none"]
    return [program]


def places(text: str) -> list[str]:
    return sorted(re.findall(r"^rank .*, launcher \d+$", text, re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
def test_one_host(spawn: Spawn, kind: str) -> None:
    job = spawn(*mpirun(kind), "-n", "3", *JOINER, "3")
    assert job.wait() == 0, job.stderr
    assert places(job.stdout) == [f"rank {r} of 3, local {r} of 3, servers 0, launcher {r}" for r in range(3)]
    job.wait_gone(10)


@pytest.mark.parametrize("kind", KINDS)
def test_servers_where_asked(spawn: Spawn, kind: str) -> None:
    job = spawn(*mpirun(kind), "-n", "2", *JOINER, "3", variables={"DMLC_NUM_SERVER": "2"})
    assert job.wait() == 0, job.stderr
    assert len(places(job.stdout)) == 2 and "servers 2" in job.stdout
    job.wait_gone(10)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_alone(spawn: Spawn, kind: str) -> None:
    job = spawn(*mpirun(kind), "-n", "1", *JOINER, "1")
    assert job.wait() == 0, job.stderr
    assert "rank 0 of 1" in job.stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", ["mpirun", "worker", "coordinator"])
def test_whatever_is_killed_nothing_is_left(spawn: Spawn, tmp_path: pathlib.Path, kind: str, victim: str) -> None:
    job = spawn(*mpirun(kind), "-n", "2", *JOINER, "0")
    job.wait_for("round 1", 2)
    pid = job.process.pid
    if victim != "mpirun":
        wanted = "byteps_server" if victim == "coordinator" else "joiner.py 0"
        pid = next(pid for pid, words in job.processes().items() if wanted in words and "mpirun" not in words)
    os.kill(pid, signal.SIGKILL)
    assert job.wait(30) != 0
    wait_until(lambda: not job.processes(), lambda: f"left behind: {job.processes()}", 15)
    for folder in (tmp_path / "tmp").glob("ompi.*"):  # Open MPI's own, when its mpirun is killed.
        shutil.rmtree(folder)


# ---- Several hosts ----


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


def over_ssh(kind: str, hosts: SshHosts, folder: pathlib.Path, slots: int) -> list[str]:
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\nexec ssh -F {hosts.config} "$@"\n')
    agent.chmod(0o755)
    file = folder / "hosts"
    if kind == "openmpi":
        file.write_text("".join(f"{host.address} slots={slots}\n" for host in (hosts[0], hosts[1])))
        return [
            *mpirun(kind),
            *(
                "--hostfile",
                str(file),
                "--mca",
                "plm_rsh_agent",
                str(agent),
                "--mca",
                "oob_tcp_if_include",
                "10.231.7.0/24",
            ),
            *("-x", "LD_LIBRARY_PATH"),
        ]
    file.write_text("".join(f"{host.address}:{slots}\n" for host in (hosts[0], hosts[1])))
    return [*mpirun(kind), "-f", str(file), "-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "br0"]


def run_over_hosts(spawn: Spawn, hosts: SshHosts, command: list[str]) -> Launch:
    return spawn(*hosts.here, *command, variables={"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")})


@pytest.mark.parametrize("kind", KINDS)
def test_two_hosts(spawn: Spawn, hosts: SshHosts, tmp_path: pathlib.Path, kind: str) -> None:
    job = run_over_hosts(spawn, hosts, [*over_ssh(kind, hosts, tmp_path, 2), "-n", "4", *JOINER, "3"])
    assert job.wait() == 0, job.stderr
    assert places(job.stdout) == [f"rank {r} of 4, local {r % 2} of 2, servers 2, launcher {r}" for r in range(4)]
    hosts.wait_empty()


def test_ranks_that_go_round_the_hosts(spawn: Spawn, hosts: SshHosts, tmp_path: pathlib.Path) -> None:
    """Ranks of a host that do not follow each other stay what the launcher says."""
    command = [*over_ssh("openmpi", hosts, tmp_path, 2), "--map-by", "node", "-n", "4", *JOINER, "3"]
    job = run_over_hosts(spawn, hosts, command)
    assert job.wait() == 0, job.stderr
    assert [line.partition(", local")[0] + line[-11:] for line in places(job.stdout)] == [
        f"rank {r} of 4 launcher {r}" for r in range(4)
    ]
    hosts.wait_empty()


def test_mpi4py_is_not_needed() -> None:
    done = subprocess.run(
        [*JOINER[:1], "-c", "import byteps, sys; print('mpi4py' in sys.modules)"], capture_output=True
    )
    assert done.stdout == b"False\n", done.stderr
