"""Where the servers of a Slurm job run, and the scripts of deploy/slurm, as sbatch runs them."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, JOINER, Spawn, needs_package
from slurm_cluster import SlurmCluster

from launcher.failure import LaunchError
from launcher.remote.host_list import Host
from launcher.remote.slurm_allocation import Allocation

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = _CHECKOUT / "deploy" / "slurm"
TRAINER = [sys.executable, str(pathlib.Path(__file__).with_name("trainer.py")), "3", "1000"]

pytestmark = needs_package


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 3) as slurm:
        yield slurm


@pytest.fixture
def sbatch(
    spawn: Spawn, slurm: SlurmCluster, real: dict[str, str], tmp_path: pathlib.Path
) -> Iterator[Callable[..., str]]:
    """Runs a script of deploy/slurm to its end; what it has written."""
    program = tmp_path / "bin" / "bpslaunch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(BPSLAUNCH)} --verbose "$@"\n')
    program.chmod(0o755)

    def run(*words: str, code: int = 0, **variables: str) -> str:
        path = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"
        output = tmp_path / "output"
        command = [*slurm.here, "sbatch", "--wait", "-o", str(output), *words]
        job = spawn(*command, variables={**slurm.variables, **real, "PATH": path, **variables})
        assert job.wait() == code, job.stderr + output.read_text()
        return output.read_text()

    yield run
    slurm.hosts.wait_empty()


def nodes_of(output: str, role: str) -> list[str]:
    """On which nodes the processes of a role have run, in the order of their names."""
    found = re.findall(rf"^bpslaunch: {role} (\S+): pid \d+ on host (\S+)$", output, re.MULTILINE)
    return [node for _, node in sorted(found, key=lambda each: [int(part) for part in each[0].split(".")])]


def test_workers_with_a_server_on_each_node(sbatch: Callable[..., str]) -> None:
    output = sbatch("--nodes=2", "--ntasks-per-node=2", str(SCRIPTS / "job.sh"), *TRAINER)
    assert nodes_of(output, "worker") == ["ln1", "ln1", "ln2", "ln2"]
    assert nodes_of(output, "server") == ["ln1", "ln2"]
    assert "rank 3 of 4, local 1 of 2" in output


def test_the_last_tasks_are_servers(sbatch: Callable[..., str]) -> None:
    output = sbatch("--nodes=3", "--ntasks=3", str(SCRIPTS / "server_tasks.sh"), *TRAINER, SERVERS="1")
    assert nodes_of(output, "worker") == ["ln1", "ln2"] and nodes_of(output, "server") == ["ln3"]
    assert "rank 1 of 2, local 0 of 1" in output


def test_a_node_of_workers_and_servers(sbatch: Callable[..., str]) -> None:
    size = ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
    output = sbatch(*size, str(SCRIPTS / "server_tasks.sh"), *TRAINER, SERVERS="1")
    assert nodes_of(output, "worker") == ["ln1", "ln1", "ln2"] and nodes_of(output, "server") == ["ln2"]


def test_all_tasks_are_servers(sbatch: Callable[..., str]) -> None:
    output = sbatch("--ntasks=2", str(SCRIPTS / "server_tasks.sh"), "echo", "trains", code=2)
    assert "--server-tasks 2: the allocation has 2 tasks: none is left for workers" in output
    assert "trains\n" not in output


def het(script: pathlib.Path, folder: pathlib.Path, first: str, second: str) -> str:
    """A script of two components with other counts: options of sbatch are those of the first one alone."""
    text = script.read_text()
    head, tail = text.split("#SBATCH hetjob\n")
    assert "--nodes=4" in head and "--nodes=2" in tail
    head = re.sub(r"^#SBATCH --n.*\n", "", head, flags=re.MULTILINE) + f"#SBATCH {first}\n"
    tail = re.sub(r"^#SBATCH --n.*\n", "", tail, flags=re.MULTILINE)
    changed = folder / script.name
    changed.write_text(f"{head}#SBATCH hetjob\n#SBATCH {second}\n{tail}")
    return str(changed)


def test_servers_on_nodes_of_their_own(sbatch: Callable[..., str], tmp_path: pathlib.Path) -> None:
    script = het(SCRIPTS / "server_nodes.sh", tmp_path, "--nodes=2 --ntasks-per-node=2", "--nodes=1")
    output = sbatch(script, *TRAINER)
    workers, servers = nodes_of(output, "worker"), nodes_of(output, "server")
    assert len(workers) == 4 and len(servers) == 1 and servers[0] not in workers
    assert "rank 3 of 4, local 1 of 2" in output


def test_servers_there_and_beside_the_workers(sbatch: Callable[..., str], tmp_path: pathlib.Path) -> None:
    script = het(SCRIPTS / "colocated.sh", tmp_path, "--nodes=2 --ntasks-per-node=1", "--nodes=1")
    output = sbatch(script, *TRAINER)
    workers, servers = nodes_of(output, "worker"), nodes_of(output, "server")
    assert len(workers) == 2 and len(servers) == 3
    assert servers[0] not in workers and servers[1:] == workers


def test_tasks_of_srun(sbatch: Callable[..., str]) -> None:
    output = sbatch("--nodes=2", "--ntasks-per-node=2", str(SCRIPTS / "tasks.sh"), *JOINER, "3")
    assert len(re.findall(r"^rank \d of 4, local \d of 2, servers 2", output, re.MULTILINE)) == 4, output


def test_a_task_that_fails_ends_all(sbatch: Callable[..., str], tmp_path: pathlib.Path) -> None:
    """The job's exit code is that of the task that has failed first."""
    mark = str(tmp_path / "mark")
    output = sbatch(
        "--nodes=2", "--ntasks-per-node=1", str(SCRIPTS / "tasks.sh"), *JOINER, "0", "--fail-once", mark, code=7
    )
    assert "round 0" in output and re.search(r"srun: error: ln2: task 1: Exited with exit code 7", output), output


def test_rank_0_where_names_mean_nothing(
    sbatch: Callable[..., str], slurm: SlurmCluster, tmp_path: pathlib.Path
) -> None:
    """Node names are Slurm's own; the coordinator's address is one that the other nodes reach."""
    lookup = [*slurm.here, sys.executable, "-c", "import socket; socket.gethostbyname('ln1')"]
    assert subprocess.run(lookup, check=False, capture_output=True).returncode != 0, "ln1 has an address here"
    show = tmp_path / "show.py"
    show.write_text("import os\nprint('meets at', os.environ['DMLC_PS_ROOT_URI'], flush=True)\n")
    output = sbatch("--nodes=2", "--ntasks-per-node=1", str(SCRIPTS / "job.sh"), sys.executable, str(show))
    assert output.count(f"meets at {slurm.hosts[0].address}\n") == 2, output
    # srun's own tasks: those without PMI meet in a folder.
    output = sbatch("--nodes=2", "--ntasks-per-node=1", str(SCRIPTS / "tasks.sh"), *JOINER, "2")
    assert "rank 1 of 2" in output


def test_every_script_is_in_the_list() -> None:
    readme = (SCRIPTS / "README.md").read_text()
    assert sorted(path.name for path in SCRIPTS.glob("*.sh")) == sorted(
        re.findall(r"^\| `(\S+\.sh)`", readme, re.MULTILINE)
    )


# ---- Tasks that are servers, computed ----


@pytest.mark.parametrize(
    "slots, servers, workers, places",
    [
        ([2, 2], 1, {"n0": 2, "n1": 1}, {"n1": 1}),
        ([2, 2], 2, {"n0": 2}, {"n1": 2}),
        ([2, 2], 3, {"n0": 1}, {"n0": 1, "n1": 2}),
        ([1, 1, 1], 2, {"n0": 1}, {"n1": 1, "n2": 1}),
    ],
)
def test_tasks_from_the_end(slots: list[int], servers: int, workers: dict[str, int], places: dict[str, int]) -> None:
    given = Allocation([Host(f"n{index}", count) for index, count in enumerate(slots)], [], {})
    found = given.with_server_tasks(servers)
    assert {host.name: host.slots for host in found.worker_hosts} == workers
    assert {host.name: host.slots for host in found.server_hosts} == places


def test_tasks_that_cannot_be_servers() -> None:
    one = Allocation([Host("n0", 2)], [], {})
    with pytest.raises(LaunchError, match="--server-tasks 3: the allocation has 2 tasks: none is left for workers"):
        one.with_server_tasks(3)
    components = Allocation([Host("n0", 2)], [Host("n1", 1)], {"n0": 0, "n1": 1})
    with pytest.raises(LaunchError, match="the second component has the servers already"):
        components.with_server_tasks(1)
