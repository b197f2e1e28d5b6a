"""The workers of a launcher that is killed, seen by the process beside the first of them."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import select
import selectors
import signal
import sys

import pytest
from launching import DEADLINE, Spawn, needs_package

from launcher.environments import launched_workers
from launcher.environments.launched_workers import LaunchedWorkers
from launcher.environments.launcher_process import LauncherProcess


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM], ids=errno.errorcode.get)
def test_without_descriptors_of_processes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Linux before 5.3, or a sandbox that does not know them: nobody is watched, and the job begins."""

    def refuse(_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(launched_workers, "pidfd_open", refuse)
    with selectors.DefaultSelector() as selector:
        said: list[str] = []
        workers = LaunchedWorkers(LauncherProcess(os.getppid(), "torchrun", 0), os.getpid(), selector, said.append)
        assert not workers.alive and not selector.get_map() and not said


# Starts two tasks, and waits for them. Its name is that of a launcher.
LAUNCHER = """#!{python}
import os, subprocess, sys
tasks = [subprocess.Popen(sys.argv[1:], env={{**os.environ, "SLURM_PROCID": str(rank)}}) for rank in range(2)]
for task in tasks:
    task.wait()
"""

# Rank 0 writes over its first environment, as programs do that set their title, then both train somewhere.
TASK = """
import ctypes, os, sys, time
if os.environ["SLURM_PROCID"] == "0":
    for name, value in os.environ.items():
        os.environ[name] = value  # A copy of it, which the C library uses from now on.
    with open("/proc/self/stat") as stat:
        begin, end = (int(word) for word in stat.read().rpartition(")")[2].split()[47:49])
    ctypes.memset(begin, 0, end - begin)
import byteps
byteps.init()
sys.stdout.write(f"trains as {os.getpid()}\\n")
sys.stdout.flush()
time.sleep(1000)
"""


@needs_package
@pytest.mark.parametrize("name", ["slurmstepd", "prterun"])
def test_a_worker_that_has_another_title(spawn: Spawn, tmp_path: pathlib.Path, name: str) -> None:
    """Its variables are not to be seen; the process beside it was told who it is, and who has started it."""
    launcher = tmp_path / name
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    variables = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "BYTEPS_RENDEZVOUS_DIR": str(tmp_path / "meet")}
    job = spawn(str(launcher), sys.executable, "-c", TASK, variables=variables)
    job.wait_for("trains as", 2)
    tasks = [os.pidfd_open(int(pid)) for pid in re.findall(r"trains as (\d+)", job.stdout)]
    job.process.kill()
    try:
        for task in tasks:
            assert select.select([task], [], [], DEADLINE)[0], f"still trains\n{job.stderr}"
    finally:
        for task in tasks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(task, signal.SIGKILL)
            os.close(task)
    job.process.wait()
    job.wait_gone()
    assert re.search(r"what has started worker rank 0 \(.*\) and worker rank 1 \(.*\) is gone: ending them", job.stderr)
