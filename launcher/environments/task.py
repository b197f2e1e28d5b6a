"""`srun bpslaunch -- command`, and so under mpirun and torchrun: one worker, whose fellows the launcher has started.

It is what `byteps.init()` does for a trainer in Python, for a trainer in any language: the variables are set when the
command starts.

Threads: the meeting has one of its own, since it may wait for minutes: the supervisor's hears signals meanwhile, the
death of the guardian and that of the launcher.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Sequence

from .. import process_tree
from ..affinity import of_task, threads
from ..cause import Cause
from ..child import ChildSpec, Role
from ..environment import Environment
from ..failure import LaunchError
from ..gpus import visible_gpu
from ..output import OutputFiles, Printer
from ..supervisor import Phase, Supervisor
from ..system_calls import pidfd_open
from ..topology import cpu_list
from .launcher_process import is_launcher
from .meeting import Meeting
from .place import Surroundings

_START_SECONDS = 120.0  # until all have come; BYTEPS_START_TIMEOUT says otherwise
_LEAVE_SECONDS = 5.0  # for coordinator and servers, after a failure
_GIVE_UP_SECONDS = 2.0  # for a meeting that is left to take back what it has put into a store


class MeetingThread:
    """A meeting in a thread of its own."""

    def __init__(self, meeting: Meeting, deadline: float) -> None:
        """Begins it; `deadline` is of time.monotonic()."""
        self.over, self._writer = os.pipe()  # The end of the first can be read once the meeting is over.
        self._meeting = meeting
        self._placed: dict[str, str] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(deadline,), daemon=True)
        self._thread.start()

    def _run(self, deadline: float) -> None:
        try:
            self._placed = self._meeting.run(deadline)
        except BaseException as error:
            self._error = error
        finally:
            os.close(self._writer)

    @property
    def succeeded(self) -> bool:
        """Whether all have met."""
        return self._placed is not None

    def result(self) -> dict[str, str]:
        """The variables that have come of it, once it is over; or its exception."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._placed is not None
        return self._placed

    def give_up(self) -> None:
        """Ends it, if it is not over. One that waits inside a library (PMI's, PyTorch's) ends with this process."""
        if self._thread.is_alive():
            self._meeting.give_up()
            self._thread.join(_GIVE_UP_SECONDS)


class TaskSupervisor(Supervisor):
    """Meets the others, then supervises the worker; what is beside it stays as long as the others need it.

    While it is CONNECTING nothing of ours runs.
    """

    def __init__(
        self, printer: Printer, files: OutputFiles | None, kill_after: float, lifeline: int, verbose: bool
    ) -> None:
        """As Supervisor."""
        super().__init__(printer, files, kill_after, lifeline, verbose)
        self._phase = Phase.CONNECTING

    def run_task(self, meeting: Meeting, deadline: float, worker: Callable[[dict[str, str]], ChildSpec]) -> int:
        """The exit code of the job.

        Args:
            meeting: with the others
            deadline: until when they must have come, of time.monotonic()
            worker: what to start, given the variables that have come of the meeting
        """
        self._meeting = meeting
        self._start_by = deadline
        self._worker = worker
        self._thread: MeetingThread | None = None
        try:
            code = self.run([])
        finally:
            if self._have_met:
                meeting.close()
        if self._have_met:
            meeting.end(code)
        return code

    @property
    def _have_met(self) -> bool:
        return self._thread is not None and self._thread.succeeded

    # ---- Until all have met ----

    def _start(self, specs: Sequence[ChildSpec]) -> None:
        del specs  # What to start is known later.
        # Before the meeting: when it is over, what has started us may be gone, and nobody would know who it was.
        self._watch_launcher()
        self._thread = thread = MeetingThread(self._meeting, self._start_by)
        self._selector.register(thread.over, selectors.EVENT_READ, lambda: self._met(thread))

    def _met(self, thread: MeetingThread) -> None:
        self._selector.unregister(thread.over)
        os.close(thread.over)
        try:
            spec = self._worker(thread.result())
        except LaunchError as error:
            self._fail(Cause(error.exit_code, str(error)))
            return
        self._phase = Phase.RUNNING
        super()._start([spec])

    def _advance(self) -> None:
        if self._phase is Phase.CONNECTING and self._cause is not None:
            self._enter(Phase.ENDING_WORKERS)
        super()._advance()

    def _watch_launcher(self) -> None:
        # Above us are the keeper and the guardian, which the launcher has started.
        guardian = process_tree.parent(os.getppid()) or 0
        launcher = process_tree.parent(guardian)
        if launcher is None or not is_launcher(launcher):
            return
        try:
            descriptor = pidfd_open(launcher)
        except ProcessLookupError:
            self._fail(self._without(launcher))
            return
        except OSError:
            return  # Linux before 5.3, or a sandbox: it cannot be watched.
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._launcher_ended(descriptor, launcher))

    def _launcher_ended(self, descriptor: int, launcher: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._fail(self._without(launcher))

    def _without(self, launcher: int) -> Cause:
        text = f"what has started this task (pid {launcher}) is gone: ending the worker"
        return Cause(128 + signal.SIGKILL, text, asked_for=True)

    # ---- The end ----

    def _sweep(self) -> None:
        if self._thread is not None:
            self._thread.give_up()
        self._let_read()  # The others may take long.
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
    meeting = Meeting(surroundings, environment, None)  # The TaskSupervisor watches the launcher.
    seconds = environment.seconds("BYTEPS_START_TIMEOUT") or _START_SECONDS
    supervisor = TaskSupervisor(printer, files, kill_after, lifeline, verbose)

    def worker(placed: dict[str, str]) -> ChildSpec:
        with surroundings.named():
            return _worker(surroundings.rank, command, environment, placed)

    return supervisor.run_task(meeting, time.monotonic() + seconds, worker)
