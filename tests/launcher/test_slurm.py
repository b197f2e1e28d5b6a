"""Under the real Slurm: tasks of srun that find each other, and bpslaunch in an allocation."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, JOINER, TRAINER, Launch, Spawn, needs_package, wait_until
from slurm_cluster import SlurmCluster

from launcher.failure import LaunchError
from launcher.remote import slurm_allocation

pytestmark = needs_package


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


@pytest.fixture
def salloc(spawn: Spawn, slurm: SlurmCluster, real: dict[str, str]) -> Iterator[Callable[..., Launch]]:
    def run(*words: str, stdin: int = subprocess.DEVNULL, **variables: str) -> Launch:
        return spawn(*slurm.here, "salloc", *words, variables={**slurm.variables, **real, **variables}, stdin=stdin)

    yield run
    slurm.hosts.wait_empty()


def test_bpslaunch_in_an_allocation(salloc: Callable[..., Launch]) -> None:
    job = salloc("-N2", "--ntasks-per-node=2", *BPSLAUNCH, "--verbose", "--", *TRAINER, "3", "100000")
    assert job.wait() == 0, job.stderr
    for rank in range(4):
        assert f"[worker {rank // 2}.{rank % 2}] rank {rank} of 4, local {rank % 2} of 2" in job.stdout
    assert "server 1: pid " in job.stderr


def test_an_allocation_of_a_user_who_came_by_ssh(salloc: Callable[..., Launch]) -> None:
    """Slurm hands the variables of the login host to every node: addresses of that connection are none of a node."""
    words = ["-N2", "--ntasks-per-node=1", *BPSLAUNCH, "--", *TRAINER, "2", "1000"]
    job = salloc(*words, SSH_CONNECTION="203.0.113.9 50022 198.51.100.7 22")
    assert job.wait() == 0, job.stderr
    assert job.stdout.count("done") == 2, job.stdout


def test_the_shell_of_salloc_on_a_node(salloc: Callable[..., Launch]) -> None:
    """With LaunchParameters=use_interactive_step salloc starts the user's shell like this: as a step that has a number,
    and is no step of tasks."""
    step = ["srun", "--interactive", "--preserve-env"]
    job = salloc("-N2", "--ntasks-per-node=2", *step, *BPSLAUNCH, "--", *TRAINER, "2", "1000")
    assert job.wait() == 0, job.stderr
    for rank in range(4):
        assert f"[worker {rank // 2}.{rank % 2}] rank {rank} of 4" in job.stdout, job.stdout


def test_numbers_and_ports_in_an_allocation(salloc: Callable[..., Launch]) -> None:
    """They say nothing against the allocation; --workers does."""
    words = ["--servers", "1", "--port", "9124", "--verbose"]
    show = [sys.executable, "-c", "import os; print('port', os.environ['DMLC_PS_ROOT_PORT'])"]
    job = salloc("-N2", "--ntasks-per-node=1", *BPSLAUNCH, *words, "--", *show)
    assert job.wait() == 0, job.stderr
    assert "[worker 1.0] port 9124" in job.stdout
    assert re.findall(r"server \d+: pid \d+ on host (\S+)$", job.stderr, re.MULTILINE) == ["ln1"]
    here = salloc("-N2", "--ntasks-per-node=1", *BPSLAUNCH, "--workers", "2", "--", *TRAINER, "1", "10")
    assert here.wait() == 0, here.stderr
    assert "[worker 1] rank 1 of 2, local 1 of 2" in here.stdout


def test_output_of_an_allocation(salloc: Callable[..., Launch], tmp_path: pathlib.Path) -> None:
    """In front of each line time, origin and host; and each stream in a file here, byte for byte."""
    words = ["--timestamps", "--host-names", "--output-dir", str(tmp_path / "out")]
    show = "import os, sys; print('rank', os.environ['DMLC_WORKER_ID'] + '\\r!'); print('wrong', file=sys.stderr)"
    job = salloc("-N2", "--ntasks-per-node=1", *BPSLAUNCH, *words, "--", sys.executable, "-c", show)
    assert job.wait() == 0, job.stderr
    for rank in range(2):
        origin = rf"^\d{{4}}-\d\d-\d\d [\d:.]{{12}} \[worker {rank}\.0 on ln{rank + 1}\] "
        assert re.search(f"{origin}!$", job.stdout, re.MULTILINE), job.stdout
        assert re.search(f"{origin}wrong$", job.stderr, re.MULTILINE), job.stderr
        assert (tmp_path / "out" / f"worker{rank}.0.stdout").read_bytes() == f"rank {rank}\r!\n".encode()
        assert (tmp_path / "out" / f"worker{rank}.0.stderr").read_bytes() == b"wrong\n"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"coordinator.stderr", "server0.stdout", "server1.stderr"} <= names, names


def test_check_of_an_allocation(salloc: Callable[..., Launch], slurm: SlurmCluster) -> None:
    check = salloc("-N2", "--ntasks-per-node=1", *BPSLAUNCH, "--check", "--", *TRAINER)
    assert check.wait() == 0, check.stdout + check.stderr
    rows = {line.split()[0]: line for line in check.stdout.splitlines()}
    for number in (0, 1):
        assert slurm.hosts[number].address in rows[f"ln{number + 1}"] and "1 of 1" in rows[f"ln{number + 1}"]
    taken = salloc("-N2", "--ntasks-per-node=1", *BPSLAUNCH, "--port", "22", "--", "echo", "trains")
    assert taken.wait() != 0 and "trains" not in taken.stdout
    assert f"host ln1: cannot listen at {slurm.hosts[0].address}:22: Address already in use" in taken.stderr


def test_an_allocation_that_makes_no_sense(spawn: Spawn, slurm: SlurmCluster, real: dict[str, str]) -> None:
    """As where a script has changed the variables of Slurm."""
    for variables, said in (
        ({"SLURM_JOB_NODELIST": "ln[1-"}, "not a list of nodes: ln[1-"),
        ({"SLURM_JOB_NODELIST": "ln[1-2]", "SLURM_TASKS_PER_NODE": "1", "SLURM_NTASKS": "1"}, "has 2 nodes"),
        ({"SLURM_JOB_NODELIST": "ln[1-2],ln1"}, "SLURM_JOB_NODELIST=ln[1-2],ln1: ln1 is there twice"),
        (
            {
                "SLURM_HET_SIZE": "2",
                "SLURM_JOB_NODELIST_HET_GROUP_0": "ln1",
                "SLURM_JOB_NODELIST_HET_GROUP_1": "ln2,ln2",
            },
            "SLURM_JOB_NODELIST_HET_GROUP_1=ln2,ln2: ln2 is there twice",
        ),
    ):
        job = spawn(
            *slurm.here, *BPSLAUNCH, "--", "echo", "trains", variables={**real, "SLURM_JOB_ID": "7", **variables}
        )
        assert job.wait() == 2 and said in job.stderr, job.stderr
        assert "trains" not in job.stdout


def test_more_roles_than_an_allocation_has(salloc: Callable[..., Launch]) -> None:
    words = ["-N2", "--ntasks-per-node=1", *BPSLAUNCH, "--server-tasks", "2", "--", "echo", "trains"]
    job = salloc(*words)
    assert job.wait() == 2 and "trains" not in job.stdout
    assert "--server-tasks 2: the allocation has 2 tasks: none is left for workers" in job.stderr, job.stderr


def test_more_servers_than_a_component_has(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    groups = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": f"a{number}" for number in range(2)}
    job = dry_run(spawn, tmp_path, "--servers", "2", SLURM_HET_SIZE="2", **groups)
    assert job.wait() == 2 and job.stdout == ""
    assert "--servers 2: the server hosts have places for 1" in job.stderr, job.stderr


def test_a_node_that_the_allocation_does_not_have(salloc: Callable[..., Launch]) -> None:
    """Half of what the variables say is another job's, as where a script has kept those of a larger one."""
    job = salloc(
        "-N1",
        "-n1",
        "env",
        "SLURM_JOB_NODELIST=ln[1-2]",
        "SLURM_TASKS_PER_NODE=1(x2)",
        *BPSLAUNCH,
        "--",
        "echo",
        "trains",
    )
    assert job.wait(90) != 0 and "trains" not in job.stdout
    assert re.search(r"host ln[12] could not be reached: srun exited", job.stderr), job.stderr


def test_a_node_that_slurm_does_not_know(spawn: Spawn, slurm: SlurmCluster, real: dict[str, str]) -> None:
    variables = {**slurm.variables, **real, "SLURM_JOB_ID": "999999", "SLURM_JOB_NODELIST": "ln1,nowhere"}
    job = spawn(*slurm.here, *BPSLAUNCH, "--", "echo", "trains", variables=variables)
    assert job.wait() != 0
    assert re.search(r"host (ln1|nowhere) could not be reached: srun exited", job.stderr), job.stderr
    assert "trains" not in job.stdout


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


@pytest.mark.parametrize("tasks", [2, 4])
def test_tasks_that_open_no_session(srun: Callable[..., Launch], real: dict[str, str], tasks: int) -> None:
    """The job ends with its commands: coordinator and servers wait for nobody."""
    job = srun("-N2", f"-n{tasks}", *BPSLAUNCH, "--", "echo", "ran", **real)
    assert job.wait(60) == 0, job.stderr
    assert job.stdout.count("ran") == tasks and job.stderr == "", job.stdout + job.stderr


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
    assert "rank 0 of 1" in job.stdout and job.stderr == ""
    several = {**variables, "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8"}
    job = spawn(*BPSLAUNCH, "--", *TRAINER, "1", "10", variables=several)
    assert job.wait() == 0 and "rank 0 of 1" in job.stdout, job.stderr
    said = "bpslaunch: a Slurm allocation (SLURM_JOB_NUM_NODES=2, SLURM_NTASKS=8), but no srun here"
    assert job.stderr.startswith(said) and job.stderr.count("\n") == 1, job.stderr
    asked = spawn(*BPSLAUNCH, "--workers", "2", "--", *TRAINER, "1", "10", variables=several)
    assert asked.wait() == 0 and "rank 1 of 2" in asked.stdout and asked.stderr == "", asked.stderr


def test_a_shell_of_a_step_of_an_allocation(salloc: Callable[..., Launch]) -> None:
    """It cannot use the other nodes, and says so; not where this host was asked for."""
    command = shlex.join([*BPSLAUNCH, "--", *TRAINER, "1", "10"])
    here = shlex.join([*BPSLAUNCH, "--workers", "1", "--", *TRAINER, "1", "10"])
    job = salloc("-N2", "--ntasks-per-node=2", "srun", "-N1", "-n1", "sh", "-c", f"{command} && {here}")
    assert job.wait() == 0, job.stderr
    assert job.stdout.count("rank 0 of 1") == 2, job.stdout
    said = "bpslaunch: a step of one task in an allocation of 2 nodes: only this host takes part; run bpslaunch outside"
    assert job.stderr.count(said) == 1, job.stderr


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


# What it hears; it ends by itself once it has heard both.
HEARS = """\
import signal
numbers = (signal.SIGUSR1, signal.SIGUSR2)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("trains", flush=True)
while (number := signal.sigwait(numbers)) != signal.SIGUSR2:
    print("warned by", number.name, flush=True)
print("warned by", number.name, flush=True)
"""


def test_warnings_of_slurm(spawn: Spawn, slurm: SlurmCluster, real: dict[str, str], tmp_path: pathlib.Path) -> None:
    """To all processes of the steps, and, as with --signal=B:USR2@300, to the batch script alone."""
    script, output = tmp_path / "script", tmp_path / "output"
    words = shlex.join([*BPSLAUNCH, "--", sys.executable, "-c", HEARS])
    script.write_text(f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=1\nexec {words}\n")
    words = ["sbatch", "--parsable", "--wait", "-o", str(output), str(script)]
    batch = spawn(*slurm.here, *words, variables={**slurm.variables, **real})

    def wait_for(text: str) -> None:
        wait_until(
            lambda: output.exists() and output.read_text().count(text) >= 2,
            lambda: f"{text}: {output.read_text()} {batch.stderr}",
        )

    wait_for("trains")
    number = batch.stdout.strip()
    slurm.run("scancel", "--signal=USR1", number)
    wait_for("warned by SIGUSR1")
    slurm.run("scancel", "--signal=USR2", "--batch", number)
    wait_for("warned by SIGUSR2")
    assert batch.wait(60) == 0, output.read_text()


def test_scancel_ends_tasks(srun: Callable[..., Launch], slurm: SlurmCluster) -> None:
    """With what is beside them: coordinator and servers."""
    job = srun("-N2", "-n2", *JOINER, "0")
    job.wait_for("round 2", 2)
    slurm.run("scancel", "--user=root")
    assert job.wait(60) != 0
    slurm.hosts.wait_empty(30)


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

    def all_there_is() -> str:
        shown = slurm.run("scontrol", "show", "job", number) + slurm.run("scontrol", "show", "nodes")
        return f"{shown}\n{output.read_text()[-5000:]}\n{slurm.logs()}"

    def is_in(state: str) -> bool:
        """Whether the job is; one that cannot come to it any more fails the test at once."""
        shown = slurm.run("scontrol", "show", "job", number)
        now = re.findall(r"JobState=(\S+) Reason=(\S+)", shown)
        if now[0][0] in ("FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT") or "held" in now[0][1].lower():
            pytest.fail(f"the job is {now}\n{all_there_is()}")
        return now[0][0] == state

    def soon() -> bool:
        """Slurm lets a requeued job rest for two minutes. It refuses what it launches in the second in which it has
        revoked the first attempt's credential."""
        with contextlib.suppress(subprocess.CalledProcessError):
            slurm.run("scontrol", "update", f"jobid={number}", "starttime=now+3")
            return True
        return False

    wait_until(lambda: is_in("PENDING"), lambda: f"the first attempt does not end\n{all_there_is()}")
    wait_until(soon, lambda: f"no time to start at is accepted\n{all_there_is()}")
    wait_until(lambda: is_in("COMPLETED"), lambda: f"the job has not come back\n{all_there_is()}")
    assert said("done", 2) and "rank 1 of 2" in output.read_text().rpartition("round")[0]
    slurm.hosts.wait_empty()


# What sbatch and its script leave for steps: for the agent's step they would be less than the node, or no step at all.
LEFT = {"SRUN_CPUS_PER_TASK": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_CPU_BIND": "map_cpu:0", "SLURM_STDINMODE": "none"}


def test_an_agent_has_the_whole_node(salloc: Callable[..., Launch]) -> None:
    names = tuple(LEFT)
    show = [sys.executable, "-c", f"import os; print('sees', *(os.environ[name] for name in {names}))"]
    variables = [f"{name}={value}" for name, value in LEFT.items()]
    job = salloc("-N2", "--ntasks-per-node=1", "env", *variables, *BPSLAUNCH, "--", *show)
    assert job.wait() == 0, job.stderr
    assert job.stdout.count(f"sees {' '.join(LEFT.values())}\n") == 2, "the trainer's variables are those of the script"


def test_what_srun_does_not_see() -> None:
    others = {
        "SLURM_GPUS": "8",
        "SLURM_MEM_PER_CPU": "1G",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_TRES_PER_TASK": "cpu=1",
    }
    kept = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_NODELIST": "a", "SLURM_CPUS_ON_NODE": "4"}
    assert slurm_allocation.of_other_steps({**LEFT, **others, **kept}) == {**LEFT, **others}


def test_variables_of_one_host(salloc: Callable[..., Launch]) -> None:
    """srun hands the variables of the script to every node: what is said to be ignored is not in force there."""
    left = {"DMLC_NODE_HOST": "10.231.7.254", "BYTEPS_HOST_ID": "mine"}
    show = f"import os; print('has', *(os.environ.get(name) for name in {tuple(left)}))"
    words = ["--servers", "0", "--", sys.executable, "-c", show]
    job = salloc("-N1", "-n1", *BPSLAUNCH, *words, **left)
    assert job.wait() == 0, job.stderr
    assert "DMLC_NODE_HOST=10.231.7.254 (see DMLC_INTERFACE), BYTEPS_HOST_ID=mine" in job.stderr, job.stderr
    assert "has None None\n" in job.stdout, job.stdout


def test_a_script_that_exports_nothing(salloc: Callable[..., Launch], spawn: Spawn, tmp_path: pathlib.Path) -> None:
    """As with sbatch --export=NONE, which is for the variables of the login host, and not for the script's own."""
    show = [sys.executable, "-c", "import os; print('at', os.environ.get('HOME'), os.environ.get('MINE'))"]
    job = salloc("-N1", "-n1", *BPSLAUNCH, "--", *show, SLURM_EXPORT_ENV="NONE", MINE="here")
    assert job.wait() == 0, job.stderr
    assert re.search(r"at /\S+ here$", job.stdout, re.MULTILINE), job.stdout
    dry = dry_run(spawn, tmp_path, SLURM_EXPORT_ENV="NONE")
    assert dry.wait() == 0 and dry.stdout.count(" --export=ALL ") == 2, dry.stdout


HERE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-2]"}


def dry_run(spawn: Spawn, folder: pathlib.Path, *words: str, **variables: str) -> Launch:
    """An allocation that nothing is asked about: what would be started."""
    (folder / "srun").write_text("#!/bin/sh\nexit 99\n")
    (folder / "srun").chmod(0o755)
    given = {"PATH": f"{folder}:/usr/bin:/bin", **HERE, **variables}
    return spawn(*BPSLAUNCH, "--dry-run", *words, "--", "true", variables=given)


def test_servers_by_variable_in_an_allocation(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    """As for tasks; other variables of a single process are named, and ignored."""
    job = dry_run(spawn, tmp_path, DMLC_NUM_SERVER="1", BYTEPS_LOCAL_SIZE="4", CUDA_VISIBLE_DEVICES="3", **LEFT)
    assert job.wait() == 0, job.stderr
    assert "[server 0]" in job.stdout and "[server 1]" not in job.stdout
    assert job.stderr.endswith("a job over several hosts: BYTEPS_LOCAL_SIZE=4 (see --hosts a:N)\n")
    agents = re.findall(r"^\[host a\d\] (.*)$", job.stdout, re.MULTILINE)
    without = " ".join(f"-u {name}" for name in sorted(LEFT))
    assert all(line.startswith(f"env {without} srun ") and " --cpu-bind=none " in line for line in agents), agents
    assert "CUDA_VISIBLE_DEVICES" not in job.stdout, "each node's own, of its step"
    asked = dry_run(spawn, tmp_path, "--servers", "3", "--env", "CUDA_VISIBLE_DEVICES=3", DMLC_NUM_SERVER="1")
    assert asked.wait() == 0 and "[server 2]" in asked.stdout and "CUDA_VISIBLE_DEVICES=3" in asked.stdout


def test_a_heterogeneous_job_of_three(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    groups = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": f"a{number}" for number in range(3)}
    job = dry_run(spawn, tmp_path, SLURM_HET_SIZE="3", **groups)
    assert job.wait() == 2 and job.stdout == ""
    assert "the heterogeneous job has 3 components: bpslaunch takes two" in job.stderr


def test_a_heterogeneous_job_of_salloc(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    """Its nodes are those of the first component: without a word there would be no servers on the second."""
    job = dry_run(spawn, tmp_path, SLURM_HET_SIZE="2")
    assert job.wait() == 2 and job.stdout == ""
    assert "SLURM_JOB_NODELIST_HET_GROUP_0 and _1, salloc does not" in job.stderr, job.stderr


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
