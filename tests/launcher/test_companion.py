"""The process beside a worker: what it does when the worker ends."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from launching import Spawn, needs_package

CHECKOUT = str(pathlib.Path(__file__).resolve().parents[2])

# Has a coordinator beside it, and ends.
WORKER = f"""
import os, sys
sys.path.insert(0, {CHECKOUT!r})
os.environ["WORKER"] = str(os.getpid())
from launcher.environment import Environment
from launcher.environments.companion import Companion
Companion(Environment(os.environ)).start("127.0.0.1", [], {{}}, "1")
"""

# Two sessions, one after the other; each line that it reads takes it a step further.
SESSIONS = """
import sys
import byteps
for session in range(2):
    byteps.init()
    sys.stdout.write(f"open {session}\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    byteps.shutdown()
    sys.stdout.write(f"closed {session}\\n")
    sys.stdout.flush()
    sys.stdin.readline()
"""


@pytest.mark.parametrize("debugger", ["0", "1"])
def test_the_coordinator_ends_with_its_worker(spawn: Spawn, real: dict[str, str], debugger: str) -> None:
    """Also with one that ends while the coordinator starts."""
    if debugger == "1" and shutil.which("gdb") is None:
        pytest.skip("gdb is not here")
    job = spawn(sys.executable, "-c", WORKER, variables={**real, "BYTEPS_ENABLE_GDB": debugger})
    assert job.wait() == 0, job.stderr
    job.wait_gone()
    assert "beside worker" not in job.stderr, job.stderr


@needs_package
def test_a_warning_of_a_batch_system_ends_no_job(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    """It goes to every process: the coordinator waits for the next session all the same."""
    jobs = [
        spawn(sys.executable, "-c", SESSIONS, variables=task(rank, tmp_path), stdin=subprocess.PIPE) for rank in (0, 1)
    ]

    def step(after: str) -> None:
        for job in jobs:
            job.wait_for(after)
        for job in jobs:
            for pid, words in job.processes().items():
                if "byteps_server" in words:
                    os.kill(pid, signal.SIGUSR1)
        for job in jobs:
            assert job.process.stdin is not None
            job.process.stdin.write(b"\n")
            job.process.stdin.flush()

    for after in ("open 0", "closed 0", "open 1", "closed 1"):
        step(after)
    for job in jobs:
        assert job.wait() == 0, job.stderr
        job.wait_gone()


def task(rank: int, folder: pathlib.Path) -> dict[str, str]:
    """The variables of one of two tasks of Slurm."""
    return {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "BYTEPS_RENDEZVOUS_DIR": str(folder / "meet"),
    }
