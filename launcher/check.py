"""`bpslaunch --check`: what would go wrong, said before it does. One line per check; nothing is started or changed."""

from __future__ import annotations

import pathlib
import stat
from collections.abc import Iterator

from .addresses import is_loopback
from .arguments import Arguments
from .command import worker_command
from .environment import Environment
from .failure import LaunchError
from .finding import Finding, Level, fail, note, ok
from .installation_checks import check_installation
from .job import job_size
from .loopback import loopback
from .network_checks import check_network, check_port
from .output import Printer
from .placement_checks import check_placement
from .roles import read_place, server_cores

_SHORTEST_TOKEN = 16


def run_checks(arguments: Arguments, environment: Environment, printer: Printer) -> int:
    """Prints the findings; 1 if any is a failure, else 0."""
    count = {level: 0 for level in Level}
    for finding in _findings(arguments, environment):
        count[finding.level] += 1
        printer.result(finding.line())
    printer.result(", ".join(f"{number} {level.value}" for level, number in count.items()))
    return 1 if count[Level.FAIL] else 0


def _findings(arguments: Arguments, environment: Environment) -> Iterator[Finding]:
    role = environment.role()
    if role is None:
        yield from _check_job(arguments, environment)
    else:
        yield from _check_role(role, arguments, environment)


def _check_job(arguments: Arguments, environment: Environment) -> Iterator[Finding]:
    try:
        size = job_size(arguments.workers, arguments.servers, environment)
        yield ok("counts", f"on this host: workers {size.workers}, servers {size.servers}")
    except LaunchError as error:
        yield fail("counts", str(error))
        return
    yield from _check_workers(size.workers, size.servers, arguments, environment)
    yield from check_installation(
        environment, workers=True, services=not size.alone, alone=size.alone, local=size.servers == 0
    )
    if not size.alone:
        yield from _check_loopback(arguments, environment)
        yield _check_token(environment, None)


def _check_role(role: str, arguments: Arguments, environment: Environment) -> Iterator[Finding]:
    try:
        place = read_place(environment, role)
        workers = environment.local_workers() if role == "worker" else 0
        here = "" if place.host is None else f"; workers on this one, host {place.host}: {workers}"
        yield ok("counts", f"worker hosts {place.hosts}, servers {place.servers}{here}")
    except LaunchError as error:
        yield fail("counts", str(error))
        return
    # One host without servers: the launcher starts the coordinator by which its workers meet.
    together = workers > 1 and not place.distributed
    if role == "worker":
        yield from _check_workers(workers, int(arguments.colocate), arguments, environment)
    elif role == "server":
        yield from _check_server_cores(environment)
    yield from check_installation(
        environment,
        workers=role == "worker",
        services=role != "worker" or together,
        alone=not place.distributed and not together,
        local=together,
    )
    if place.root is not None:
        yield from check_network(environment, role, place.root)
        yield _check_token(environment, place.root[0])


def _check_server_cores(environment: Environment) -> Iterator[Finding]:
    try:
        server_cores(environment)
    except LaunchError as error:
        yield fail("cores", str(error))


def _check_workers(workers: int, servers: int, arguments: Arguments, environment: Environment) -> Iterator[Finding]:
    """`servers`: beside them, on this host."""
    yield from check_placement(environment, workers, servers)
    if arguments.command:
        try:
            command = worker_command(arguments.command, environment)
            yield ok("command", " ".join(command))
        except LaunchError as error:
            yield fail("command", str(error))


def _check_loopback(arguments: Arguments, environment: Environment) -> Iterator[Finding]:
    try:
        address = loopback(environment.text("DMLC_PS_ROOT_URI"))
    except LaunchError as error:
        yield fail("route", str(error))
        return
    yield ok("route", f"{address[1]} can be reached")
    yield check_port(address, arguments.port or 0)


def _check_token(environment: Environment, root: str | None) -> Finding:
    """`root` is the coordinator's host; None: a whole job, which makes up its own token."""
    path = environment.text("BYTEPS_JOB_TOKEN_FILE")
    token = environment.text("BYTEPS_JOB_TOKEN")
    if token is not None and path is not None:
        return fail("token", "both BYTEPS_JOB_TOKEN and BYTEPS_JOB_TOKEN_FILE are set: unset one")
    if token is None and path is not None:
        try:
            token = pathlib.Path(path).read_text().strip()
            mode = stat.S_IMODE(pathlib.Path(path).stat().st_mode)
        except (OSError, UnicodeDecodeError) as error:
            return fail("token", f"BYTEPS_JOB_TOKEN_FILE={path}: {getattr(error, 'strerror', None) or error}")
        if not token:
            return fail("token", f"BYTEPS_JOB_TOKEN_FILE={path} is empty")
        if mode & 0o077:
            return note("token", f"{path} can be read by others (mode {mode:o}): chmod 600 {path}")
    if token is not None:
        if len(token) < _SHORTEST_TOKEN:
            return note("token", f"of {len(token)} characters only; make one with `openssl rand -hex 32`")
        return ok("token", "from BYTEPS_JOB_TOKEN" if path is None else f"from {path}")
    if root is None:
        return ok("token", "made up for the job")
    if is_loopback(root):
        return ok("token", "none; not needed on loopback")
    if environment.flag("BYTEPS_ALLOW_UNAUTHENTICATED"):
        return note("token", "none, and BYTEPS_ALLOW_UNAUTHENTICATED=1: all that reach the port can join the job")
    return fail(
        "token",
        f"none, and the coordinator {root} is not on loopback: set BYTEPS_JOB_TOKEN or BYTEPS_JOB_TOKEN_FILE to the "
        "same secret on every host, or BYTEPS_ALLOW_UNAUTHENTICATED=1 on a network that you trust",
    )
