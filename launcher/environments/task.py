"""`srun bpslaunch -- command`, and so under mpirun and torchrun: one worker, whose fellows the launcher has started.

It is what `byteps.init()` does for a trainer in Python, for a trainer in any language: the variables are set when the
command starts.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Sequence

from .. import process_tree
from ..affinity import of_task, threads
from ..cause import Cause
from ..child import ChildSpec, Role
from ..environment import Environment
from ..gpus import visible_gpu
from ..output import OutputFiles, Printer
from ..supervisor import Supervisor
from ..system_calls import pidfd_open
from ..topology import cpu_list
from .launcher_process import is_launcher
from .meeting import Meeting
from .place import Surroundings

_START_SECONDS = 120.0  # until all have come; BYTEPS_START_TIMEOUT says otherwise
_LEAVE_SECONDS = 5.0  # for coordinator and servers, after a failure


class TaskSupervisor(Supervisor):
    """Supervises the worker; what is beside it stays as long as the others need it."""

    def __init__(
        self,
        printer: Printer,
        files: OutputFiles | None,
        kill_after: float,
        lifeline: int,
        verbose: bool,
        meeting: Meeting,
    ) -> None:
        super().__init__(printer, files, kill_after, lifeline, verbose)
        self._meeting = meeting

    def _start(self, specs: Sequence[ChildSpec]) -> None:
        # Above us are the keeper and the guardian, which the launcher has started.
        keeper = os.getppid()
        launcher = process_tree.parent(process_tree.parent(keeper) or 0)
        if launcher is not None and is_launcher(launcher):
            with contextlib.suppress(OSError):
                descriptor = pidfd_open(launcher)
                self._selector.register(
                    descriptor, selectors.EVENT_READ, lambda: self._launcher_ended(descriptor, launcher)
                )
        super()._start(specs)

    def _launcher_ended(self, descriptor: int, launcher: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        text = f"what has started this task (pid {launcher}) is gone: ending the worker"
        self._fail(Cause(128 + signal.SIGKILL, text, asked_for=True))

    def _sweep(self) -> None:
        self._meeting.leave(None if self._cause is None else _LEAVE_SECONDS)
        super()._sweep()


def _worker(rank: int, command: Sequence[str], environment: Environment, placed: dict[str, str]) -> ChildSpec:
    """The process to start; `placed`: what has come of the meeting."""
    local_rank, workers = int(placed["BYTEPS_LOCAL_RANK"]), int(placed["BYTEPS_LOCAL_SIZE"])
    # Above the servers beside us, too, and above a bpslaunch that the command may contain.
    variables = {**environment.variables(), **placed, "BYTEPS_LAUNCHER_PID": str(os.getpid())}
    variables.setdefault("PYTHONUNBUFFERED", "1")
    plan = of_task(environment, local_rank, workers)
    cpus, io = plan.workers[local_rank], plan.io[local_rank]
    if cpus is not None:
        variables.setdefault("OMP_NUM_THREADS", str(threads(plan, local_rank)))
    if io is not None:
        variables["BYTEPS_IO_CPU_CORES"] = cpu_list(io)
    gpu = visible_gpu(environment, local_rank, workers)
    if gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = gpu
    return ChildSpec(f"worker {rank}", Role.WORKER, list(command), variables, cpus=cpus, reads_stdin=True)


def run_task(
    surroundings: Surroundings,
    command: Sequence[str],
    environment: Environment,
    printer: Printer,
    files: OutputFiles | None,
    kill_after: float,
    lifeline: int,
    verbose: bool,
) -> int:
    """Meets the others, then runs the command as a worker; its exit code."""
    meeting = Meeting(surroundings, environment, None)  # The TaskSupervisor watches it.
    seconds = environment.seconds("BYTEPS_START_TIMEOUT") or _START_SECONDS
    placed = meeting.run(time.monotonic() + seconds)
    try:
        spec = _worker(surroundings.rank, command, environment, placed)
        code = TaskSupervisor(printer, files, kill_after, lifeline, verbose, meeting).run([spec])
    finally:
        meeting.close()
    meeting.end(code)
    return code
