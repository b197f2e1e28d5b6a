"""Under the real mpirun of Open MPI (PMIx) and of MPICH (PMI): byteps.init() finds the others, on one host and several.

Nothing of MPI is linked or imported: the trainers know their launcher by its variables.
"""

from __future__ import annotations

import ctypes.util
import glob
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from launching import BPSLAUNCH, JOINER, Launch, Spawn, needs_package, wait_until
from ssh_hosts import SshHosts

from launcher.environments import pmix

pytestmark = needs_package

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


@pytest.mark.parametrize("by", ["init", "bpslaunch"])
def test_a_token_of_a_file(spawn: Spawn, tmp_path: pathlib.Path, real: dict[str, str], by: str) -> None:
    """Rank 0 reads it; the library takes no second token beside the one that it is given."""
    token = tmp_path / "token"
    token.write_text("a secret of the tests\n")
    token.chmod(0o600)
    words = [*BPSLAUNCH, "--"] if by == "bpslaunch" else []
    variables = {**real, "BYTEPS_JOB_TOKEN_FILE": str(token), "DMLC_NUM_SERVER": "1"}
    job = spawn(*mpirun("mpich"), "-n", "2", *words, *JOINER, "2", variables=variables)
    assert job.wait() == 0, job.stderr
    assert job.stdout.count("done") == 2 and "servers 1" in job.stdout
    token.write_text("")
    empty = spawn(*mpirun("mpich"), "-n", "2", *words, *JOINER, "2", variables=variables)
    assert empty.wait() != 0 and f"BYTEPS_JOB_TOKEN_FILE={token} is empty" in empty.stdout + empty.stderr


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


# A program that uses MPI itself, as by mpi4py; 0x44000000 is MPICH's MPI_COMM_WORLD.
BOTH = """\
import ctypes, sys
import byteps
mpi = ctypes.CDLL("libmpich.so.12")
assert mpi.MPI_Init(None, None) == 0
byteps.init()
rank = ctypes.c_int()
assert mpi.MPI_Comm_rank(0x44000000, ctypes.byref(rank)) == 0 and rank.value == byteps.rank()
byteps.shutdown()
assert mpi.MPI_Barrier(0x44000000) == 0 and mpi.MPI_Finalize() == 0
sys.stdout.write(f"both {rank.value} of 2\\n")
"""


def test_a_program_that_uses_mpi_itself(spawn: Spawn) -> None:
    """PMI's connection is MPI's: it is not closed under its hands."""
    mpich = mpirun("mpich")
    if ctypes.util.find_library("mpich") is None:
        pytest.skip("libmpich is not here")
    job = spawn(*mpich, "-n", "2", sys.executable, "-c", BOTH)
    assert job.wait() == 0, job.stdout + job.stderr
    assert sorted(re.findall(r"both \d of 2", job.stdout)) == ["both 0 of 2", "both 1 of 2"], job.stdout


def test_two_programs_of_one_rank(spawn: Spawn) -> None:
    program = f"{sys.executable} -c 'import byteps; byteps.init(); byteps.shutdown()'"
    job = spawn(*mpirun("mpich"), "-n", "2", "sh", "-c", f"{program} && {program}")
    assert job.wait() != 0
    assert "one program of each rank can call bps.init()" in job.stdout + job.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_token(spawn: Spawn, kind: str) -> None:
    """More than PMI keeps of a value."""
    job = spawn(*mpirun(kind), "-n", "2", *JOINER, "2", variables={"BYTEPS_JOB_TOKEN": "x" * 3000})
    assert job.wait() == 0, job.stderr
    assert job.stdout.count("done") == 2, job.stdout


def test_open_mpi_without_the_library_of_pmix(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    """The ranks meet in a folder; mpirun has its library."""
    openmpi = mpirun("openmpi")
    libraries = [path for path in pmix._PLACES for path in glob.glob(path)]  # noqa: PTH207
    hide = "".join(f"mount --bind /dev/null {path} && " for path in libraries)
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "sh", "-c", f"{hide}true"]).returncode != 0:
        pytest.skip("the library cannot be hidden here")
    hidden = ["unshare", "--mount", "sh", "-c", f'{hide}exec "$@"', "sh"]
    folder = tmp_path / "shared"
    job = spawn(*openmpi, "-n", "2", *hidden, *JOINER, "2", variables={"BYTEPS_RENDEZVOUS_DIR": str(folder)})
    assert job.wait() == 0, job.stderr
    assert len(places(job.stdout)) == 2 and job.stdout.count("done") == 2, job.stdout
    assert folder.exists() and not list(folder.iterdir())


@pytest.mark.parametrize("by", ["init", "bpslaunch"])
@pytest.mark.parametrize("name", ["MV2_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_an_mpi_that_is_not_known(spawn: Spawn, real: dict[str, str], name: str, by: str) -> None:
    """Its ranks must not each train alone, without a word."""
    words = [*BPSLAUNCH, "--"] if by == "bpslaunch" else []
    rank = spawn(*words, *JOINER, "1", variables={**real, name: "4"})
    assert rank.wait() != 0 and f"{name}=4" in rank.stdout + rank.stderr
    alone = spawn(*words, *JOINER, "1", variables={**real, name: "4", "BYTEPS_DETECT_LAUNCHER": "0"})
    assert alone.wait() == 0 and "rank 0 of 1" in alone.stdout, alone.stderr


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


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_end_hard(spawn: Spawn, hosts: SshHosts, tmp_path: pathlib.Path, kind: str) -> None:
    """After shutdown() a rank may end by os._exit(0): for the launcher that is no crash, which ends the others."""
    command = [*over_ssh(kind, hosts, tmp_path, 2), "-n", "4", *JOINER, "3", "--hard-exit", str(tmp_path / "ended")]
    job = run_over_hosts(spawn, hosts, command)
    assert job.wait() == 0, job.stdout + job.stderr
    assert job.stdout.count("done") == 4 and job.stdout.count("outlived") == 3, job.stdout
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


# ---- bpslaunch as the command of each rank ----

SHOW = """\
import os, sys
names = ("DMLC_NUM_SERVER", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
place = os.environ["BYTEPS_LOCAL_RANK"], os.environ["BYTEPS_LOCAL_SIZE"]
print("local", *place, *(os.environ.get(name) for name in names), sorted(os.sched_getaffinity(0)), flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_servers_and_places_of_tasks(spawn: Spawn, real: dict[str, str]) -> None:
    """--servers counts for all ranks together; cores and GPUs by BytePS's variables, as for a job of bpslaunch."""
    cores = sorted(os.sched_getaffinity(0))
    first, last = cores[0], cores[-1]
    variables = {**real, "BYTEPS_VISIBLE_CPU_CORES": f"{first}:{last}", "BYTEPS_SET_CUDA_VISIBLE_DEVICES": "1"}
    variables["CUDA_VISIBLE_DEVICES"] = "6,7"
    words = [*BPSLAUNCH, "--servers", "2", "--", sys.executable, "-c", SHOW, *JOINER, "1"]
    job = spawn(*mpirun("mpich"), "-n", "2", *words, variables=variables)
    assert job.wait() == 0, job.stderr
    assert (
        f"[worker 0] local 0 2 2 6 1 [{first}]" in job.stdout and f"[worker 1] local 1 2 2 7 1 [{last}]" in job.stdout
    )
    job.wait_gone(10)


def test_cores_of_servers_of_tasks(spawn: Spawn, real: dict[str, str]) -> None:
    core = max(os.sched_getaffinity(0))
    variables = {**real, "BYTEPS_SERVER_CPU_CORES": str(core), "DMLC_NUM_SERVER": "1"}
    job = spawn(*mpirun("mpich"), "-n", "2", *JOINER, "0", variables=variables)
    job.wait_for("round 1", 2)
    roles = {}
    for pid, words in job.processes().items():
        if "byteps_server" in words:
            given = dict(item.partition("=")[::2] for item in environment_of(pid))
            roles[given["DMLC_ROLE"]] = os.sched_getaffinity(pid)
    assert roles["server"] == {core} and set(roles) == {"server", "scheduler"}
    job.process.terminate()
    assert job.wait() != 0
    job.wait_gone(15)
    wrong = spawn(
        *mpirun("mpich"), "-n", "2", *JOINER, "0", variables={**variables, "BYTEPS_SERVER_CPU_CORES": "99999"}
    )
    assert wrong.wait() != 0 and "BYTEPS_SERVER_CPU_CORES=99999: not usable here" in wrong.stderr
    wrong.wait_gone(10)


def environment_of(pid: int) -> list[str]:
    return pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().rstrip("\0").split("\0")


# It says nothing and opens no session: neither ends it.
QUIET = """\
import os, pathlib, sys, time
pathlib.Path(sys.argv[1] + os.environ["BYTEPS_LOCAL_RANK"]).touch()
time.sleep(1000)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_quiet_tasks_end_with_a_killed_mpirun(
    spawn: Spawn, real: dict[str, str], tmp_path: pathlib.Path, kind: str
) -> None:
    words = [*BPSLAUNCH, "--", sys.executable, "-c", QUIET, str(tmp_path / "up-")]
    job = spawn(*mpirun(kind), "-n", "2", *words, variables=real)
    up = [tmp_path / f"up-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in up), lambda: job.stderr)
    job.process.kill()
    assert job.wait() != 0
    wait_until(lambda: not job.processes(), lambda: f"left behind: {job.processes()}", 30)
    for folder in (tmp_path / "tmp").glob("ompi.*"):  # Open MPI's own, when its mpirun is killed.
        shutil.rmtree(folder)


def test_a_dry_run_of_a_task(spawn: Spawn) -> None:
    words = [*BPSLAUNCH, "--dry-run", "--servers", "3", "--", "true"]
    job = spawn(*mpirun("mpich"), "-n", "2", *words)
    assert job.wait() == 0, job.stderr
    for rank in range(2):
        assert re.search(
            rf"^\[worker {rank} of 2, a task of PMI .*\] env .*DMLC_NUM_SERVER=3.* true$", job.stdout, re.M
        )
