"""A whole job on this host: coordinator, servers and workers, and the variables that bring them together.

    bpslaunch --workers 4 -- python train.py
    BYTEPS_FORCE_DISTRIBUTED=1 bpslaunch --workers 2 --servers 1 -- python train.py

The workers of one host reduce among themselves: they need a coordinator, by which they meet, and no server. With
servers started they still do, which is faster, and the servers sum where they cannot, or where
BYTEPS_FORCE_DISTRIBUTED=1 asks for it. One worker with servers goes through them: it has no other to reduce with. One
worker without servers is alone: it gets its place and nothing else is started.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from .affinity import assign
from .child import ChildSpec, Role
from .command import in_debugger, worker_command
from .environment import MOST_LOCAL_ROLES, PLACES, Environment
from .failure import LaunchError
from .installation import server_binary
from .job_folder import JobFolder
from .lanes import lanes
from .listener import listen
from .loopback import loopback
from .workers import local_workers


@dataclasses.dataclass(frozen=True)
class JobSize:
    """How many processes of each kind."""

    workers: int
    servers: int

    @property
    def alone(self) -> bool:
        """One worker for itself: neither server nor coordinator."""
        return self.servers == 0 and self.workers == 1


def job_size(workers: int | None, servers: int | None, environment: Environment) -> JobSize:
    """Fills in what was not asked for. LaunchError if the numbers cannot work."""
    workers = 1 if workers is None else workers
    forced = environment.flag("BYTEPS_FORCE_DISTRIBUTED")
    if servers is None:
        servers = 1 if forced else 0
    for option, count in (("--workers", workers), ("--servers", servers)):
        if count > MOST_LOCAL_ROLES:
            raise LaunchError(f"{option} {count}: a host has at most {MOST_LOCAL_ROLES} of them")
    if servers == 0 and forced:
        raise LaunchError("--servers 0 contradicts BYTEPS_FORCE_DISTRIBUTED=1: ask for a server or unset the variable")
    if servers == 0 and workers > 1:
        require_shared(workers, environment, "ask for a server (--servers 1)")
    return JobSize(workers, servers)


def require_shared(workers: int, environment: Environment, otherwise: str) -> None:
    """LaunchError if the workers of this host, without servers, may not share memory. `otherwise`: what helps, too."""
    for name in ("BYTEPS_SHM", "BYTEPS_LOCAL_REDUCE"):
        if not environment.flag(name, default=True):
            raise LaunchError(
                f"{name}={environment.text(name)}: without servers {workers} workers must reduce among themselves, in "
                f"shared memory: unset the variable, or {otherwise}"
            )


def plan_job(
    size: JobSize, command: Sequence[str], environment: Environment, folder: JobFolder, port: int
) -> list[ChildSpec]:
    """What to start, in this order. Opens the coordinator's socket, which then belongs to its ChildSpec."""
    command = worker_command(command, environment)
    variables = environment.variables()
    for name in PLACES:
        variables.pop(name, None)
    variables["DMLC_NUM_WORKER"] = "1"
    variables["DMLC_NUM_SERVER"] = str(size.servers)
    variables["DMLC_WORKER_ID"] = "0"
    # Whose descendants may read each other's memory, where the system asks for it.
    variables["BYTEPS_LAUNCHER_PID"] = str(os.getpid())
    variables.update(folder.variables())
    plan = assign(environment, size.workers, size.servers)
    if size.alone:
        return local_workers(command, environment, variables, plan)

    binary = in_debugger([server_binary(environment)], environment)
    address = loopback(environment.text("DMLC_PS_ROOT_URI"))
    listener = listen(address, port)
    variables["DMLC_PS_ROOT_URI"] = address[1]
    variables["DMLC_PS_ROOT_PORT"] = str(listener.getsockname()[1])
    # A single worker would be alone, and the servers would wait for it.
    if size.servers > 0 and (size.workers == 1 or environment.flag("BYTEPS_FORCE_DISTRIBUTED")):
        variables["BYTEPS_FORCE_DISTRIBUTED"] = "1"
    variables["BYTEPS_JOB_ID"] = f"local-{os.urandom(6).hex()}"
    # The coordinator shall not end by itself: we end it when the last worker has ended.
    variables["BYTEPS_JOB_LINGER"] = "-1"
    if environment.text("BYTEPS_JOB_TOKEN") is None and environment.text("BYTEPS_JOB_TOKEN_FILE") is None:
        variables.pop("BYTEPS_JOB_TOKEN", None)
        variables["BYTEPS_JOB_TOKEN_FILE"] = str(folder.write_token())
    descriptor = os.dup(listener.fileno())
    listener.close()
    services = [
        ChildSpec(
            name="coordinator",
            role=Role.COORDINATOR,
            command=binary,
            variables={**variables, "DMLC_ROLE": "scheduler", "BYTEPS_COORDINATOR_FD": str(descriptor)},
            cpus=plan.coordinator,
            descriptors=(descriptor,),
        )
    ]
    threads = lanes(size.servers, environment, plan.of_servers)
    of_servers = {} if threads is None else {"BYTEPS_SERVER_ENGINE_THREAD": str(threads)}
    for rank in range(size.servers):
        services.append(
            ChildSpec(
                name=f"server {rank}",
                role=Role.SERVER,
                command=binary,
                variables={**variables, **of_servers, "DMLC_ROLE": "server", "DMLC_RANK": str(rank)},
                cpus=plan.servers[rank],
            )
        )
    return services + local_workers(command, environment, variables, plan)
