"""Functions of test files, run by the workers of real jobs: real processes, servers, transport.

    def _sum() -> float:
        bps.init()
        return bps.push_pull(torch.ones(1), average=False, name="x").item()

    def test_sum(run_workers):
        assert run_workers(_sum, workers=3).results == [3, 3, 3]

What a test asserts, it asserts in the worker where that is simpler: a worker that fails ends the job, and its output is
in the failure of the test.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_BODY = Path(__file__).parent / "run_body.py"

# Long enough for a loaded machine; a job that meets it fails its test.
DEADLINE = 90.0


@dataclass
class JobResult:
    """A job that has ended."""

    returncode: int
    stdout: str
    stderr: str
    results: list[Any]  # what each worker's function returned, by rank; None for one that did not return

    @property
    def output(self) -> str:
        return f"exit status {self.returncode}\nstdout:\n{self.stdout}\nstderr:\n{self.stderr}"


def clean_environment(**variables: str | None) -> dict[str, str]:
    """The environment without anything about another job, with `variables` (None: without it)."""
    kept = ("BYTEPS_LIBRARY", "BYTEPS_SERVER_BINARY", "BYTEPS_PLUGIN_PATH")
    environment = {
        key: value
        for key, value in os.environ.items()
        if key in kept or not key.startswith(("DMLC_", "BYTEPS_", "PS_", "HOROVOD_"))
    }
    # Workers share the cores of one machine.
    environment.update(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
    for key, value in variables.items():
        if value is None:
            environment.pop(key, None)
        else:
            environment[key] = value
    return environment


def run_job(
    tmp_path: Path,
    launcher: list[str],
    workers: int,
    body: Callable[..., Any],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    check: bool,
) -> JobResult:
    folder = tmp_path / f"job-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "arguments").write_bytes(pickle.dumps(arguments))
    file = Path(body.__code__.co_filename)
    command = [*launcher, sys.executable, str(_BODY), str(file), body.__name__, str(folder)]
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.terminate()  # bpslaunch takes its processes along

    timer = threading.Timer(DEADLINE, stop)
    timer.start()
    try:
        stdout, stderr = process.communicate()
    finally:
        timer.cancel()
    results: list[Any] = []
    for rank in range(workers):
        path = folder / f"{rank}.result"
        results.append(pickle.loads(path.read_bytes()) if path.exists() else None)
    job = JobResult(process.returncode, stdout, stderr, results)
    if late.is_set():
        pytest.fail(f"the job did not end within {DEADLINE} s: {job.output}", pytrace=False)
    if check and job.returncode != 0:
        pytest.fail(job.output, pytrace=False)
    return job
