"""`bpslaunch`: what the command line and the variables ask for, done."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Callable

from .addresses import is_loopback
from .arguments import Arguments, parse_arguments
from .child import ChildSpec
from .command import worker_command
from .dry_run import print_children, shell_line
from .environment import Environment
from .environments.place import Surroundings
from .failure import EXIT_NOT_EXECUTABLE, LaunchError
from .guardian import guarded
from .installation import with_plugins_of_checkout
from .job import JobSize, job_size, plan_job
from .job_folder import JobFolder
from .loopback import require_loopback
from .output import OutputFiles, Printer
from .process_tree import end_with
from .remote.slurm_allocation import Allocation, within_step, without_srun
from .roles import plan_workers, read_place, server_cores, service_command
from .standard_streams import open_the_closed
from .supervisor import Supervisor
from .ways import ROLE_VARIABLES, Way, looks_around, way_of

# The process that has called byteps.run() (frameworks/python/byteps/runner.py).
_CALLER = "_BYTEPS_RUN_CALLER"


def main(words: Sequence[str] | None = None) -> int:
    """Runs bpslaunch with `words` (default: the process's own) and returns its exit code."""
    open_the_closed()
    printer = Printer()
    caller = os.environ.pop(_CALLER, "")
    if caller.isdecimal():
        end_with(int(caller))
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
    # Modules that only one way of launching needs are imported by it: a launch starts with few of them.
    if arguments.companion is not None:
        from .environments.companion_process import CompanionProcess

        return CompanionProcess(arguments.companion, Printer("byteps")).run()
    if arguments.agent:
        from .remote.agent import serve

        return serve(printer)
    if arguments.remote.interface is not None:
        environment = Environment({**environment.variables(), "DMLC_INTERFACE": arguments.remote.interface})
    way, found = way_of(arguments, environment)
    if way is Way.HOSTS or isinstance(found, Allocation):
        from .remote.host_job import run_hosts

        return run_hosts(arguments, environment, printer, guarded, found if isinstance(found, Allocation) else None)
    if isinstance(found, Surroundings):
        return _run_task(found, arguments, environment, printer)
    if looks_around(arguments, environment):
        text = without_srun(environment.variables()) or within_step(environment.variables())
        if text is not None:
            printer.say(text)
    role = environment.role()
    if role is None:
        _refuse_half_a_role(arguments, environment)
    if arguments.check:
        from .check import run_checks

        return run_checks(arguments, environment, printer)
    if role is None:
        return _run_job(arguments, environment, printer)
    if way is Way.STARTED:
        return _become(worker_command(arguments.command, environment), "worker", environment, arguments, printer)
    return _run_role(role, arguments, environment, printer)


def _run_task(surroundings: Surroundings, arguments: Arguments, environment: Environment, printer: Printer) -> int:
    """One worker, as a task of srun, mpirun or torchrun: the others are those that it has started with us."""
    if arguments.servers is not None:
        environment = Environment({**environment.variables(), "DMLC_NUM_SERVER": str(arguments.servers)})
    with surroundings.named():
        command = worker_command(arguments.command, environment)
    if arguments.dry_run:
        line = shell_line(command, environment.variables(), os.environ)
        printer.result(f"[worker {surroundings.rank} of {surroundings.size}, a task of {surroundings.launcher}] {line}")
        return 0
    from .environments.task import run_task

    def supervise(lifeline: int) -> int:
        files = None if arguments.output_dir is None else OutputFiles(arguments.output_dir)
        return run_task(
            surroundings, command, environment, printer, files, arguments.kill_after, lifeline, arguments.verbose
        )

    return guarded(supervise, arguments.kill_after, printer)


def _refuse_half_a_role(arguments: Arguments, environment: Environment) -> None:
    found = [name for name in ROLE_VARIABLES if environment.text(name) is not None]
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
    cpus = None
    if role == "server":
        cpus = server_cores(environment)
    return _become(command, role, environment, arguments, printer, cpus)


def _become(
    command: list[str],
    role: str,
    environment: Environment,
    arguments: Arguments,
    printer: Printer,
    cpus: frozenset[int] | None = None,
) -> int:
    """Runs the command in place of this process, on these cores; it returns in a dry run alone."""
    if arguments.dry_run:
        printer.result(f"[{role}] {shell_line(command, environment.variables(), os.environ, cpus)}")
        return 0
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited.
    try:
        # Nothing to supervise: signals reach it directly.
        os.execvpe(command[0], command, environment.variables())
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

    return guarded(supervise, arguments.kill_after, printer, None if folder is None else folder.remove)
