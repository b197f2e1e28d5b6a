"""BYTEPS_IO_CPU_CORES and BYTEPS_SERVER_CPU_CORES: on which cores the threads of a real job run."""

from __future__ import annotations

import os
import re
import sys

import pytest
from launching import BPSLAUNCH, Spawn, needs_package

from launcher.topology import cpu_list

# The threads of this process by name, and where each may run.
SHOW = """\
import glob
import byteps

byteps.init()
for path in glob.glob("/proc/self/task/*/status"):
    try:
        lines = open(path).readlines()
    except (FileNotFoundError, ProcessLookupError):
        continue  # it has ended: some threads only help at the start
    fields = dict(line.rstrip("\\n").split(":\\t", 1) for line in lines if ":\\t" in line)
    print("thread", fields["Name"].strip(), fields["Cpus_allowed_list"].strip(), flush=True)
byteps.barrier()
byteps.shutdown()
"""

pytestmark = needs_package


@pytest.fixture
def two_cores() -> list[int]:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("one core only")
    return usable[:2]


def threads(output: str, worker: int) -> dict[str, set[str]]:
    """Where the threads of a worker may run, by their names."""
    found: dict[str, set[str]] = {}
    for name, cpus in re.findall(rf"^\[worker {worker}\] thread (\S+) (\S+)$", output, re.MULTILINE):
        found.setdefault(name, set()).add(cpus)
    return found


def test_the_librarys_threads_run_apart(spawn: Spawn, real: dict[str, str], two_cores: list[int]) -> None:
    first, second = map(str, two_cores)
    variables = {
        **real,
        "BYTEPS_VISIBLE_CPU_CORES": f"{first}:{second}",
        "BYTEPS_IO_CPU_CORES": f"{second}:{first}",
        "BYTEPS_SERVER_CPU_CORES": second,
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_TCP_LANES": "2",
        "BYTEPS_SHM": "0",
    }
    words = ["--workers", "2", "--servers", "1", "--", sys.executable, "-c", SHOW]
    plan = spawn(*BPSLAUNCH, "--dry-run", *words, variables=variables)
    assert plan.wait() == 0, plan.stderr
    assert f"BYTEPS_IO_CPU_CORES={second} " in plan.stdout and f"BYTEPS_IO_CPU_CORES={first} " in plan.stdout
    assert re.search(rf"^\[server 0\] .* taskset -c {second} ", plan.stdout, re.MULTILINE)
    job = spawn(*BPSLAUNCH, *words, variables=variables)
    assert job.wait() == 0, job.stderr
    for worker, (own, apart) in enumerate(((first, second), (second, first))):
        found = threads(job.stdout, worker)
        assert found["byteps-io"] == found["bps-tcp-1"] == {apart}, found
        others = set().union(*(cpus for name, cpus in found.items() if not name.startswith(("byteps-", "bps-"))))
        assert others == {own}, found


def test_without_it_they_run_where_the_trainer_does(spawn: Spawn, real: dict[str, str]) -> None:
    job = spawn(*BPSLAUNCH, "--workers", "2", "--", sys.executable, "-c", SHOW, variables=real)
    assert job.wait() == 0, job.stderr
    for worker in range(2):
        assert threads(job.stdout, worker)["byteps-io"] == {cpu_list(os.sched_getaffinity(0))}


@pytest.mark.parametrize(
    "value, said",
    [
        ("x", 'BYTEPS_IO_CPU_CORES=x: "x" is no list of cores'),
        ("1023", "BYTEPS_IO_CPU_CORES=1023: cannot run on these cores"),
    ],
)
def test_a_worker_without_bpslaunch_names_what_is_wrong(
    spawn: Spawn, real: dict[str, str], value: str, said: str
) -> None:
    trainer = spawn(sys.executable, "-c", SHOW, variables={**real, "BYTEPS_IO_CPU_CORES": value})
    assert trainer.wait() == 1
    assert said in trainer.stderr


def test_one_role_by_hand(spawn: Spawn, two_cores: list[int]) -> None:
    """What runs as DMLC_ROLE=server is shown by a program in its place."""
    show = "import os, sys\nprint(sorted(os.sched_getaffinity(0)))"
    role = {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1"}
    role |= {"DMLC_PS_ROOT_PORT": "9000", "BYTEPS_SERVER_CPU_CORES": str(two_cores[1])}
    program = ["sh", "-c", f'cat > program <<"E"\n#!{sys.executable}\n{show}\nE\nchmod +x program; exec "$@"', "sh"]
    server = spawn(*program, *BPSLAUNCH, variables={**role, "BYTEPS_SERVER_BINARY": "./program"})
    assert server.wait() == 0, server.stderr
    assert server.stdout.strip() == str([two_cores[1]])
    both = {**role, "BYTEPS_SERVER_CPU_CORES": f"{two_cores[0]}:{two_cores[1]}"}
    wrong = spawn(*BPSLAUNCH, variables={**both, "BYTEPS_SERVER_BINARY": "true"})
    assert wrong.wait() == 2 and "one list: DMLC_ROLE=server is one server" in wrong.stderr
