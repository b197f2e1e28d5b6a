"""The smallest trainer in C, run in jobs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from jobs import DEADLINE, clean_environment, launcher_command


@pytest.fixture(scope="module")
def trainer(c_program: Callable[[str], str]) -> str:
    return c_program("frameworks/c/trainer")


def _run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=clean_environment(**variables), check=False, capture_output=True, text=True, timeout=DEADLINE
    )


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2)])
def test_in_a_job(trainer: str, workers: int, servers: int) -> None:
    done = _run([*launcher_command(workers, servers), trainer])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"step +\d+  loss \d\.\d+", done.stdout)) == 5
    assert re.search(rf"trainer: converged: .* {workers} workers, {servers} servers", done.stdout), done.stdout


def test_alone(trainer: str) -> None:
    done = _run([trainer])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 workers, 0 servers" in done.stdout


def test_an_error_is_said_and_is_the_exit_status(trainer: str) -> None:
    done = _run([trainer], BYTEPS_PARTITION_BYTES="abc")
    assert done.returncode == 2
    assert "BYTEPS_PARTITION_BYTES" in done.stderr
    assert "abc" in done.stderr
