"""A meeting whose launcher is gone when the session is open."""

from __future__ import annotations

import pathlib
import socket
import sys
from typing import Any

import pytest
from launching import BPSLAUNCH, JOINER, Spawn, needs_package

from launcher.environment import Environment
from launcher.environments.exchange import Answer
from launcher.environments.meeting import Meeting
from launcher.environments.place import Surroundings
from launcher.failure import LaunchError


class Broken:
    """An exchange that cannot be left."""

    can_abort = False

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.left = False

    def meet(self, own: dict[str, Any], answer: Answer, _deadline: float) -> dict[str, Any]:
        return answer([own])[0]

    def close(self) -> None:
        self.left = True
        raise self.error

    def abort(self, code: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("error", [LaunchError("PMI has closed its connection"), BrokenPipeError()])
def test_a_session_that_is_open_stays_so(error: Exception) -> None:
    exchange = Broken(error)
    meeting = Meeting(Surroundings("a launcher", 0, 1, "here", exchange), Environment({}), None)
    assert meeting.run(0.0)["DMLC_NUM_WORKER"] == "1"
    meeting.close()
    assert exchange.left


def test_a_task_with_the_name_of_a_launcher(spawn: Spawn, real: dict[str, str], tmp_path: pathlib.Path) -> None:
    """Above the meeting are processes of bpslaunch itself, with its command line: they wait for each other in vain."""
    jobs = []
    for rank in (0, 1):
        task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2"}
        task["BYTEPS_RENDEZVOUS_DIR"] = str(tmp_path / "meet")
        jobs.append(spawn(*BPSLAUNCH, "--", "sh", "-c", "true", "torchrun", variables={**real, **task}))
    for job in jobs:
        assert job.wait(60) == 0, job.stderr
        job.wait_gone()


def test_an_error_names_rank_and_host(spawn: Spawn, real: dict[str, str], tmp_path: pathlib.Path) -> None:
    """The output of mpirun and srun is that of all ranks. Also of a trainer that meets the others itself."""
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "BYTEPS_START_TIMEOUT": "100ms"}
    task["BYTEPS_RENDEZVOUS_DIR"] = str(tmp_path / "meet")
    named = f"rank 1 of 3 (host {socket.gethostname()}): "
    job = spawn(*BPSLAUNCH, "--", "true", variables={**real, **task})
    assert job.wait(60) == 2 and job.stderr.startswith(f"bpslaunch: {named}rank 0 has not answered"), job.stderr
    job = spawn(*BPSLAUNCH, "--", "no-such-program", variables={**real, **task})
    assert job.wait(60) == 127 and job.stderr == f"bpslaunch: {named}no such program: no-such-program\n"
    job = spawn(*BPSLAUNCH, "--", "true", variables={**real, **task, "SLURM_PROCID": "0"})
    assert job.wait(60) == 2
    assert job.stderr.startswith(f"bpslaunch: {named.replace('1', '0', 1)}missing are ranks 1, 2"), job.stderr


@needs_package
def test_an_error_of_init_names_rank_and_host(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "BYTEPS_START_TIMEOUT": "100ms"}
    task["BYTEPS_RENDEZVOUS_DIR"] = str(tmp_path / "meet")
    job = spawn(sys.executable, "-c", "import byteps; byteps.init()", variables=task)
    assert job.wait(60) == 1
    assert f"rank 1 of 3 (host {socket.gethostname()}): rank 0 has not answered" in job.stderr, job.stderr


@needs_package
@pytest.mark.parametrize("asked, servers", [({"DMLC_NUM_SERVER": "2"}, 2), ({"BYTEPS_FORCE_DISTRIBUTED": "1"}, 1)])
@pytest.mark.parametrize("launcher", ["slurm", "torchrun"])
def test_servers_beside_a_single_rank(spawn: Spawn, launcher: str, asked: dict[str, str], servers: int) -> None:
    """No store is needed: the one that torchrun names here is not there."""
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    if launcher == "torchrun":
        task = {"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "WORLD_SIZE": "1", "GROUP_RANK": "0"}
        task.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    job = spawn(*JOINER, "2", variables={**task, **asked})
    assert job.wait(60) == 0, job.stderr
    assert f"rank 0 of 1, local 0 of 1, servers {servers}, launcher 0\n" in job.stdout, job.stdout
    job.wait_gone()


@needs_package
def test_a_single_rank_that_asks_for_no_servers(spawn: Spawn) -> None:
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    job = spawn(*JOINER, "2", variables={**task, "DMLC_NUM_SERVER": "0"})
    assert job.wait(60) == 0, job.stderr
    assert "rank 0 of 1, local 0 of 1, servers 0, launcher 0\n" in job.stdout, job.stdout
