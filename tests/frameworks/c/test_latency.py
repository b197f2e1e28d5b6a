"""The program that says what a small push_pull takes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from jobs import DEADLINE, clean_environment, launcher_command


@pytest.fixture(scope="module")
def latency(c_program: Callable[[str], str]) -> str:
    return c_program("frameworks/c/latency")


def _run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=clean_environment(**variables), check=False, capture_output=True, text=True, timeout=DEADLINE
    )


def _times(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stdout + done.stderr
    times = re.search(r"median ([\d.]+) us, p90 ([\d.]+) us, p99 ([\d.]+) us", done.stdout)
    assert times is not None, done.stdout
    return [float(time) for time in times.groups()]


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 0)])
def test_in_a_job(latency: str, workers: int, servers: int) -> None:
    done = _run([*launcher_command(workers, servers), latency, "4100", "50"])
    median, p90, p99 = _times(done)
    assert 0 < median <= p90 <= p99
    assert f"latency: 4100 bytes, {workers} workers, {servers} servers, transport " in done.stdout


def test_work_counts(latency: str) -> None:
    assert _times(_run([latency, "4", "20", "500"]))[0] >= 500


@pytest.mark.parametrize("words", [("3",), ("many",), ("4", "0"), ("4", "1", "-1")])
def test_wrong_calls_are_errors(latency: str, words: tuple[str, ...]) -> None:
    done = _run([latency, *words])
    assert done.returncode == 2
    assert done.stderr.startswith("usage: latency ")
    assert f'"{words[-1]}"' in done.stderr
