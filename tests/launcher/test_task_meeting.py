"""A task of another launcher that waits for the others: whatever ends it, it ends at once, and leaves nothing."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import pytest
from launching import BPSLAUNCH, Launch, Spawn, wait_until

# A bound for what takes no time, on a machine that has many other things to do; the others are waited for much longer.
SOON = 60
START_TIMEOUT = 600

# Starts one of two tasks, and waits for it.
LAUNCHER = """#!{python}
import os, subprocess, sys
sys.exit(subprocess.run(sys.argv[1:], env={{**os.environ, "SLURM_PROCID": {rank!r}}}).returncode)
"""


class Waiting:
    """A task whose fellow never comes, below a process that has the name of a launcher."""

    def __init__(self, spawn: Spawn, folder: pathlib.Path, rank: int) -> None:
        self.trained = folder / "trained"
        self.meeting = folder / "meet"
        launcher = folder / "slurmstepd"
        launcher.write_text(LAUNCHER.format(python=sys.executable, rank=str(rank)))
        launcher.chmod(0o755)
        variables = {
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "BYTEPS_RENDEZVOUS_DIR": str(self.meeting),
            "BYTEPS_START_TIMEOUT": str(START_TIMEOUT),
        }
        words = [*BPSLAUNCH, "--", "touch", str(self.trained)]
        self.launcher: Launch = spawn(str(launcher), *words, variables=variables)
        asked = self.meeting / "slurm-0-0-0" / f"ask-{rank}"
        wait_until(asked.exists, lambda: f"it does not ask\n{self.launcher.stderr}")
        self.task = _child(self.launcher.process.pid)  # its first process

    def assert_gone(self, since: float) -> None:
        self.launcher.wait_gone(SOON)
        assert time.monotonic() - since < SOON
        assert not self.trained.exists()


def _child(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal(spawn: Spawn, tmp_path: pathlib.Path, rank: int, number: signal.Signals) -> None:
    waiting = Waiting(spawn, tmp_path, rank)
    began = time.monotonic()
    os.kill(waiting.task, number)
    assert waiting.launcher.wait(SOON) == 128 + number
    waiting.assert_gone(began)
    assert f"bpslaunch: {number.name}: ending the job\n" in waiting.launcher.stderr
    assert "killed by signal 9" not in waiting.launcher.stderr
    assert not list(waiting.meeting.iterdir()), "what it had asked is left"


def test_its_first_process_is_killed(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    """As by mpirun and torchrun, of whom nobody else is known."""
    waiting = Waiting(spawn, tmp_path, 1)
    began = time.monotonic()
    os.kill(waiting.task, signal.SIGKILL)
    waiting.launcher.wait(SOON)
    waiting.assert_gone(began)
    assert "bpslaunch itself was killed" in waiting.launcher.stderr
    assert not list(waiting.meeting.iterdir()), "what it had asked is left"


def test_its_launcher_is_killed(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    waiting = Waiting(spawn, tmp_path, 1)
    began = time.monotonic()
    waiting.launcher.process.kill()
    waiting.launcher.wait(SOON)
    waiting.assert_gone(began)
    assert f"what has started this task (pid {waiting.launcher.process.pid}) is gone" in waiting.launcher.stderr
    assert not list(waiting.meeting.iterdir()), "what it had asked is left"


def test_nobody_comes(spawn: Spawn, tmp_path: pathlib.Path) -> None:
    """The error of the meeting is that of the task."""
    variables = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    variables.update(BYTEPS_RENDEZVOUS_DIR=str(tmp_path / "meet"), BYTEPS_START_TIMEOUT="1")
    task = spawn(*BPSLAUNCH, "--", "touch", str(tmp_path / "trained"), variables=variables)
    assert task.wait() == 2
    assert task.stderr.count("missing are ranks 1") == 1, task.stderr
    assert not (tmp_path / "trained").exists() and not list((tmp_path / "meet").iterdir())
