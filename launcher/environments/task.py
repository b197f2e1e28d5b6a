"""`srun bpslaunch -- command`, and so under mpirun and torchrun: one worker, whose fellows the launcher has started.

It is what `byteps.init()` does for a trainer in Python, for a trainer in any language: the variables are set when the
command starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..child import ChildSpec, Role
from ..environment import Environment
from ..output import OutputFiles, Printer
from ..supervisor import Supervisor
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

    def _sweep(self) -> None:
        self._meeting.leave(None if self._cause is None else _LEAVE_SECONDS)
        super()._sweep()


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
    meeting = Meeting(surroundings, environment)
    seconds = environment.seconds("BYTEPS_START_TIMEOUT") or _START_SECONDS
    placed = meeting.run(time.monotonic() + seconds)
    try:
        variables = {**environment.variables(), **placed}
        variables.setdefault("PYTHONUNBUFFERED", "1")
        name = f"worker {surroundings.rank}"
        spec = ChildSpec(name, Role.WORKER, list(command), variables, reads_stdin=True)
        return TaskSupervisor(printer, files, kill_after, lifeline, verbose, meeting).run([spec])
    finally:
        meeting.close()
