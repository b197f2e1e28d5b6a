"""bpslaunch in the command of a worker, as BytePS documents it: the worker is started already, and not once more."""

from __future__ import annotations

import pathlib
import shlex
import sys

import pytest
from launching import BPSLAUNCH, Service, Start, Worker

SHOW = "import os; print('worker', os.environ['BYTEPS_LOCAL_RANK'], 'of', os.environ['BYTEPS_LOCAL_SIZE'])"
ONCE = [f"[worker {rank}] worker {rank} of 2" for rank in range(2)]
# Ends with the last session, as far as its starter tells it.
LINGERS = "#!{python}\nimport os\nos.read(int(os.environ['BYTEPS_LINGER_FD']), 1)\n"


def within(*words: str) -> str:
    """A line for a shell, with bpslaunch in the middle of it."""
    return f"echo begins; {shlex.join([*BPSLAUNCH, *words])}"


def lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if "begins" not in line)


def test_a_job_of_this_host(start: Start, worker: Worker) -> None:
    launch = start("--workers", "2", "--", within(*worker(SHOW)))
    assert launch.wait() == 0, launch.stderr
    assert lines(launch.stdout) == ONCE


def test_a_script_between_the_two(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "old_script.sh"
    script.write_text(f"#!/bin/sh\n{within('--', *worker(SHOW))}\nexit $?\n")
    script.chmod(0o755)
    launch = start("--workers", "2", "--", str(script))
    assert launch.wait() == 0, launch.stderr
    assert lines(launch.stdout) == ONCE


def test_the_command_of_bytepss_dist_launcher(start: Start, worker: Worker, tmp_path: pathlib.Path) -> None:
    """Its role worker by hand, and its file of hosts, with the key that its scripts name."""
    (tmp_path / "hosts").write_text("localhost\n")
    command = within(*worker(SHOW))
    launch = start("-WH", "hosts", "-i", "key", command, variables={"BYTEPS_LOCAL_SIZE": "2"})
    assert launch.wait() == 0, launch.stderr
    assert lines(launch.stdout) == ONCE
    role = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    launch = start(command, variables=role)
    assert launch.wait() == 0, launch.stderr
    assert lines(launch.stdout) == ONCE


def test_tasks(start: Start, service: Service, worker: Worker, tmp_path: pathlib.Path) -> None:
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    step.update(BYTEPS_RENDEZVOUS_DIR=str(tmp_path / "meet"), BYTEPS_SERVER_BINARY=service(LINGERS))
    command = within(*worker(SHOW))
    tasks = [start("--", command, variables={**step, "SLURM_PROCID": str(rank)}) for rank in range(2)]
    for task in tasks:
        assert task.wait() == 0, task.stderr
    assert lines("".join(task.stdout for task in tasks)) == ONCE


def test_its_end_is_that_of_the_command(start: Start, worker: Worker) -> None:
    launch = start("--workers", "1", "--", within(*worker("import sys; sys.exit(7)")))
    assert launch.wait() == 7
    launch = start("--workers", "1", "--", within("no-such-program"))
    assert launch.wait() == 127
    assert "no such program: no-such-program" in launch.stderr


@pytest.mark.parametrize("option", [["--output-dir", "out"], ["--kill-after", "1"], ["--colocate"]], ids=str)
def test_options_of_who_has_started_the_worker(start: Start, worker: Worker, option: list[str]) -> None:
    launch = start("--workers", "1", "--", within(*option, "--", *worker(SHOW)))
    assert launch.wait() == 2 and "of 1" not in launch.stdout
    assert f"{option[0]} " in launch.stderr and "a worker that another bpslaunch has started" in launch.stderr


def test_variables_of_a_worker_that_is_not_above(start: Start) -> None:
    """As in a container with process ids of its own, or left over in a shell."""
    role = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}
    left = {**role, "BYTEPS_LOCAL_RANK": "1", "BYTEPS_LOCAL_SIZE": "2", "BYTEPS_LAUNCHER_PID": str(2**22)}
    launch = start("--", sys.executable, "-c", SHOW, variables=left)
    assert launch.wait() == 2 and launch.stdout == ""
    assert "BYTEPS_LOCAL_RANK=1 is of a worker of another bpslaunch (BYTEPS_LAUNCHER_PID=4194304)" in launch.stderr
