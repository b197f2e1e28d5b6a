"""Functions of test files, run by the workers of real jobs: real processes, servers, transport.

    def _sum() -> float:
        bps.init()
        return bps.push_pull(torch.ones(1), average=False, name="x").item()

    def test_sum(run_workers):
        assert run_workers(_sum, workers=3).results == [3, 3, 3]

Where many short functions need the same job, one job runs them all:

    BODIES = [_sum, _average]

    @pytest.mark.parametrize("body", BODIES)
    def test_in_one_job(body, outcomes):
        outcomes.check(body)

What a test asserts, it asserts in the worker where that is simpler: a worker that fails ends the job, and its output is
in the failure of the test.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_BODY = Path(__file__).parent / "run_body.py"

# Long enough for a loaded machine; a job that meets it fails its test.
DEADLINE = 300.0
# What a job has more for each function beyond the first: with one deadline for all, a job of many would be late on a
# machine on which none of them is.
_EACH_FURTHER = 30.0
# Of a job that met it: how long its end may take.
_END = 60.0


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


class Outcomes:
    """How the functions went that one job ran."""

    def __init__(self, job: JobResult) -> None:
        self._job = job

    def check(self, body: Callable[[], Any]) -> None:
        """Fails the test if the function failed on any rank."""
        if self._job.returncode != 0:
            pytest.fail(self._job.output, pytrace=False)
        failures = {rank: outcomes[body.__name__] for rank, outcomes in enumerate(self._job.results)}
        text = "\n".join(f"on rank {rank}: {failure}" for rank, failure in failures.items() if failure)
        if text:
            pytest.fail(text, pytrace=False)


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


def launcher_command(workers: int, servers: int, *options: str) -> list[str]:
    """bpslaunch for a job on this host; the command of a worker follows. Servers that a test starts are to sum, which
    those of one host would leave to the workers."""
    size = ["--workers", str(workers), "--servers", str(servers)]
    forced = ["env", "BYTEPS_FORCE_DISTRIBUTED=1"] if servers > 0 else []
    return [*forced, sys.executable, "-m", "byteps.launcher", *size, *options, "--"]


def output_of(command: Sequence[str], **variables: str | None) -> str:
    """What a program prints, be it a job or not, in a clean environment with `variables`. It must succeed."""
    done = subprocess.run(
        command, env=clean_environment(**variables), check=False, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _default_signals() -> None:
    """In a child: tests that run in the background, or under nohup, ignore some of these, and so would it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def run_job(
    tmp_path: Path,
    launcher: list[str],
    workers: int,
    bodies: list[Callable[..., Any]],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    check: bool,
    file: Path | None = None,
) -> JobResult:
    """Runs the bodies in each worker. `file`: what the workers load, and find them in; by default that of the first."""
    folder = tmp_path / f"job-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "arguments").write_bytes(pickle.dumps(arguments))
    file = file or Path(bodies[0].__code__.co_filename)
    names = ",".join(body.__name__ for body in bodies)
    command = [*launcher, sys.executable, str(_BODY), str(file), names, str(folder)]
    # What torch.compile makes is for all tests of this run. That, and what a process that is killed leaves, goes with
    # their folders.
    environment = {"TMPDIR": str(tmp_path.parent), **environment}
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_default_signals,
    )
    late, deadline = False, DEADLINE + _EACH_FURTHER * (len(bodies) - 1)
    try:
        stdout, stderr = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        late = True
        process.terminate()  # bpslaunch takes its processes along
        try:
            stdout, stderr = process.communicate(timeout=_END)
        except subprocess.TimeoutExpired:
            process.kill()  # and its guardian does
            stdout, stderr = process.communicate(timeout=_END)
    results: list[Any] = []
    for rank in range(workers):
        path = folder / f"{rank}.result"
        results.append(pickle.loads(path.read_bytes()) if path.exists() else None)
    job = JobResult(process.returncode, stdout, stderr, results)
    if late:
        pytest.fail(f"the job did not end within {deadline} s: {job.output}", pytrace=False)
    if check and job.returncode != 0:
        pytest.fail(job.output, pytrace=False)
    return job
