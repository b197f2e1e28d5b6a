"""One role, by hand: `DMLC_ROLE=scheduler|server|worker bpslaunch [command]`, once per host and role.

The variables are those of BytePS, with the same meanings. What differs: a missing or senseless variable is an error
with a non-zero exit code that names all of them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from . import process_tree
from .affinity import Cpus, assign, servers_by_hand
from .child import ChildSpec, Role
from .command import in_debugger, worker_command
from .environment import Environment
from .failure import LaunchError
from .installation import server_binary
from .job import require_shared
from .workers import local_workers

_MEETING_POINT = ("DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
_MAX_PORT = 65535


@dataclasses.dataclass(frozen=True)
class Place:
    """What the variables say about this host's part in the job."""

    role: str  # "scheduler", "server", "worker"
    hosts: int  # DMLC_NUM_WORKER counts hosts
    host: int | None  # workers: index of this host
    distributed: bool  # False: one host without servers
    servers: int
    root: tuple[str, int] | None  # where the coordinator listens; None if not distributed


def read_place(environment: Environment, role: str) -> Place:
    """Reads and checks the variables of `role`; LaunchError names what is missing or does not fit."""
    purpose = f"DMLC_ROLE={role}"
    needed = ["DMLC_NUM_WORKER"]
    if role == "worker":
        needed.append("DMLC_WORKER_ID")
    forced = environment.flag("BYTEPS_FORCE_DISTRIBUTED")
    hosts = environment.integer("DMLC_NUM_WORKER", minimum=1)
    distributed = forced or (hosts is not None and hosts > 1)
    if distributed:
        needed.extend(_MEETING_POINT)
    environment.require(needed, purpose)
    assert hosts is not None
    host = environment.integer("DMLC_WORKER_ID", 0, hosts - 1) if role == "worker" else None
    if not distributed:
        if role == "worker" and environment.local_workers() > 1:
            forced_too = "start a server and set BYTEPS_FORCE_DISTRIBUTED=1 for every role"
            require_shared(environment.local_workers(), environment, forced_too)
        return Place(role, hosts, host, False, 0, None)
    servers = environment.integer("DMLC_NUM_SERVER", minimum=1)
    uri = environment.text("DMLC_PS_ROOT_URI")
    port = environment.integer("DMLC_PS_ROOT_PORT", 1, _MAX_PORT)
    assert servers is not None and uri is not None and port is not None
    return Place(role, hosts, host, True, servers, (uri, port))


def is_started(environment: Environment) -> bool:
    """Whether this process runs within a worker that another bpslaunch has started. LaunchError if the variables say
    so, but that bpslaunch is not above this process."""
    launcher = environment.integer("BYTEPS_LAUNCHER_PID", minimum=0)
    local_rank = environment.text("BYTEPS_LOCAL_RANK")
    if not launcher or local_rank is None:
        return False
    if not process_tree.is_ancestor(launcher):
        raise LaunchError(
            f"BYTEPS_LOCAL_RANK={local_rank} is of a worker of another bpslaunch (BYTEPS_LAUNCHER_PID={launcher}), "
            "which is not above this process: within that worker, as in its container, run the command without "
            "bpslaunch; elsewhere unset both variables"
        )
    return True


def plan_workers(
    place: Place, command: Sequence[str], environment: Environment, colocate: bool = False
) -> list[ChildSpec]:
    """The workers of this host; with `colocate`, before them a server that shares its network link.

    Several workers on one host that is the whole job are not planned here: they need a coordinator, see main.py.
    """
    if colocate and not place.distributed:
        raise LaunchError("--colocate: one worker host (DMLC_NUM_WORKER=1) needs no server")
    count = environment.local_workers()
    variables = environment.variables()
    variables.pop("BYTEPS_COORDINATOR_FD", None)
    if count > 1:
        # Whose descendants may read each other's memory, where the system asks for it.
        variables["BYTEPS_LAUNCHER_PID"] = str(os.getpid())
    host = place.host if place.hosts > 1 else None
    plan = assign(environment, count, int(colocate))
    services = []
    if colocate:
        # The coordinator gives servers shares by who shares a link; it shall not have to guess.
        variables.setdefault("BYTEPS_HOST_ID", f"worker-host-{place.host}")
        services.append(
            ChildSpec(
                name="server" if host is None else f"server of host {host}",
                role=Role.SERVER,
                command=service_command(environment),
                variables={**variables, "DMLC_ROLE": "server"},
                cpus=plan.servers[0],
                # The coordinator tells it, BYTEPS_JOB_LINGER after the last session: trainers may work on alone.
                leaves_first=True,
            )
        )
    return services + local_workers(worker_command(command, environment), environment, variables, plan, host)


def service_command(environment: Environment) -> list[str]:
    """The program that plays the roles `scheduler` and `server`. It reads the variables itself."""
    return in_debugger([server_binary(environment)], environment)


def server_cores(environment: Environment) -> Cpus:
    """Where the role `server` runs; None: anywhere."""
    named = environment.text("BYTEPS_SERVER_CPU_CORES") or ""
    if ":" in named:
        raise LaunchError(f"BYTEPS_SERVER_CPU_CORES={named}: expected one list: DMLC_ROLE=server is one server")
    (cpus,) = servers_by_hand(environment, 1, here=True)
    return cpus
