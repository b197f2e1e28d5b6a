"""`bpslaunch`: what the command line and the variables ask for, done."""

from __future__ import annotations

import math
import os
import shlex
import signal
from collections.abc import Sequence
from typing import Callable

from .addresses import is_loopback
from .arguments import Arguments, parse_arguments
from .check import run_checks
from .child import ChildSpec
from .command import worker_command
from .dry_run import print_children, shell_line
from .environment import Environment
from .environments import detect
from .environments.companion_process import CompanionProcess
from .environments.place import Surroundings
from .environments.task import run_task
from .failure import EXIT_NOT_EXECUTABLE, LaunchError
from .guardian import Guardian
from .installation import with_plugins_of_checkout
from .job import JobSize, job_size, plan_job
from .job_folder import JobFolder
from .loopback import require_loopback
from .output import OutputFiles, Printer
from .remote.agent import run_agent
from .remote.host_job import run_hosts
from .remote.slurm_allocation import allocation
from .roles import plan_workers, read_place, service_command
from .supervisor import Supervisor

# From the end of the workers to that of everything else; see supervisor.py.
_ENDING_SECONDS = 8

# They say that a single role was meant when DMLC_ROLE is missing.
_ROLE_VARIABLES = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")


def main(words: Sequence[str] | None = None) -> int:
    """Runs bpslaunch with `words` (default: the process's own) and returns its exit code."""
    printer = Printer()
    try:
        return _launch(parse_arguments(words), Environment(with_plugins_of_checkout(os.environ)), printer)
    except LaunchError as error:
        printer.say(str(error))
        return error.exit_code
    except KeyboardInterrupt:  # Before there was anything to end.
        return 128 + signal.SIGINT


def _launch(arguments: Arguments, environment: Environment, printer: Printer) -> int:
    printer.timestamps = arguments.timestamps
    environment = Environment({**environment.variables(), **environment.chosen(arguments.env)})
    if arguments.companion is not None:
        return CompanionProcess(arguments.companion, Printer("byteps")).run()
    if arguments.agent:
        return _serve(printer)
    if arguments.remote.given:
        return run_hosts(arguments, environment, printer, _guarded)
    role = environment.role()
    if role is None and not arguments.whole_job and not arguments.check and not _placed(environment):
        allocated = allocation(environment.variables())
        if allocated is not None:
            return run_hosts(arguments, environment, printer, _guarded, allocated)
        surroundings = detect(environment.variables())
        if surroundings is not None and surroundings.size > 1:
            return _run_task(surroundings, arguments, environment, printer)
    if role is not None and arguments.whole_job:
        raise LaunchError(
            f"DMLC_ROLE={role} asks for one role, --workers, --servers and --port for a whole job on this host: "
            "unset DMLC_ROLE or leave the options out"
        )
    if role is None:
        _refuse_half_a_role(arguments, environment)
    if arguments.colocate and role != "worker":
        raise LaunchError(
            "--colocate is for DMLC_ROLE=worker: it starts a server beside the workers of this host; "
            "on a single host --servers says how many there are"
        )
    if arguments.check:
        return run_checks(arguments, environment, printer)
    if role is None:
        return _run_job(arguments, environment, printer)
    return _run_role(role, arguments, environment, printer)


def _placed(environment: Environment) -> bool:
    """Whether a variable says where this process belongs, or BytePS is not to look around."""
    if not environment.flag("BYTEPS_DETECT_LAUNCHER", default=True):
        return True
    return any(environment.text(name) is not None for name in _ROLE_VARIABLES if name != "DMLC_NUM_SERVER")


def _run_task(surroundings: Surroundings, arguments: Arguments, environment: Environment, printer: Printer) -> int:
    """One worker, as a task of srun, mpirun or torchrun: the others are those that it has started with us."""
    if arguments.dry_run:
        printer.result(f"[worker {surroundings.rank}] {shlex.join(worker_command(arguments.command, environment))}")
        return 0
    command = worker_command(arguments.command, environment)

    def supervise(lifeline: int) -> int:
        files = None if arguments.output_dir is None else OutputFiles(arguments.output_dir)
        return run_task(
            surroundings, command, environment, printer, files, arguments.kill_after, lifeline, arguments.verbose
        )

    return _guarded(supervise, arguments.kill_after, printer)


def _refuse_half_a_role(arguments: Arguments, environment: Environment) -> None:
    found = [name for name in _ROLE_VARIABLES if environment.text(name) is not None]
    if found and not arguments.whole_job:
        raise LaunchError(
            f"DMLC_ROLE is not set, but {', '.join(found)} is: set DMLC_ROLE to scheduler, server or worker, "
            "or ask for a whole job on this host with --workers N"
        )


def _run_job(arguments: Arguments, environment: Environment, printer: Printer) -> int:
    size = job_size(arguments.workers, arguments.servers, environment)
    with JobFolder() as folder:
        if arguments.dry_run:
            return print_children(plan_job(size, arguments.command, environment, folder, arguments.port or 0), printer)
        return _supervise(
            lambda: plan_job(size, arguments.command, environment, folder, arguments.port or 0),
            arguments,
            printer,
            folder,
        )


def _run_role(role: str, arguments: Arguments, environment: Environment, printer: Printer) -> int:
    place = read_place(environment, role)
    if place.distributed and place.root is not None and is_loopback(place.root[0]):
        require_loopback(place.root[0])
    if role == "worker" and not (place.distributed or arguments.colocate) and environment.local_workers() > 1:
        # The workers of one host reduce among themselves; what brings them together is ours to start.
        size = JobSize(environment.local_workers(), 0)
        with JobFolder() as folder:
            if arguments.dry_run:
                return print_children(plan_job(size, arguments.command, environment, folder, 0), printer)
            return _supervise(
                lambda: plan_job(size, arguments.command, environment, folder, 0), arguments, printer, folder
            )
    if role == "worker" and arguments.dry_run:
        return print_children(plan_workers(place, arguments.command, environment, arguments.colocate), printer)
    if role == "worker":
        return _supervise(
            lambda: plan_workers(place, arguments.command, environment, arguments.colocate), arguments, printer
        )
    # Who says here how many workers the host has starts them by hand: no other launcher brings them together.
    if not place.distributed and (environment.integer("BYTEPS_LOCAL_SIZE", minimum=1) or 1) == 1:
        printer.say(
            f"DMLC_ROLE={role}: nothing to do: one worker host (DMLC_NUM_WORKER=1) without BYTEPS_FORCE_DISTRIBUTED=1 "
            "needs no server, and bpslaunch starts a coordinator for its workers if they need one (for workers that "
            "are started without bpslaunch: set BYTEPS_LOCAL_SIZE here, too)"
        )
        return 0
    command = service_command(environment)
    if arguments.dry_run:
        printer.result(f"[{role}] {shell_line(command, environment.variables(), os.environ)}")
        return 0
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited.
    try:
        os.execvp(command[0], command)  # Nothing to supervise: signals reach it directly.
    except OSError as error:
        raise LaunchError(f"cannot run {command[0]}: {error.strerror}", EXIT_NOT_EXECUTABLE) from None


def _supervise(
    plan: Callable[[], list[ChildSpec]],
    arguments: Arguments,
    printer: Printer,
    folder: JobFolder | None = None,
) -> int:
    """Plans in the supervisor's process: what it opens must not stay open in the guardian."""

    def supervise(lifeline: int) -> int:
        files = None if arguments.output_dir is None else OutputFiles(arguments.output_dir)
        supervisor = Supervisor(printer, files, arguments.kill_after, lifeline, arguments.verbose)
        return supervisor.run(plan())

    return _guarded(supervise, arguments.kill_after, printer, folder)


def _serve(printer: Printer) -> int:
    """`bpslaunch --agent`: the far side of a job over several hosts."""
    return _guarded(run_agent, 0.0, printer)


def _guarded(
    supervise: Callable[[int], int], kill_after: float, printer: Printer, folder: JobFolder | None = None
) -> int:
    def body(lifeline: int) -> int:
        try:
            return supervise(lifeline)
        except LaunchError as error:
            printer.say(str(error))
            return error.exit_code
        finally:
            if folder is not None:
                folder.remove()

    patience = math.ceil(kill_after) + _ENDING_SECONDS
    return Guardian(body, patience, printer, (lambda: None) if folder is None else folder.remove).run()
