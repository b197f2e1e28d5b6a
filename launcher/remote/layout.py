"""Which roles run on which host of a job, and the variables that bring them together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from ..child import ChildSpec, Role
from ..environment import PLACES, Environment
from ..failure import LaunchError
from .host_list import Host

# What goes to other hosts of the variables here: what programs of a job read, and what says where they are installed.
# HOME, TMPDIR and their like belong to a host, and secrets of other programs to those alone.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "LANG", "LC_ALL", "TERM", "TZ", "NO_COLOR")
_PASSED_PREFIXES = (
    *(
        "BYTEPS_",
        "_BYTEPS_",
        "DMLC_",
        "PS_",
        "HOROVOD_",
        "PYTHON",
        "CONDA_",
        "OMP_",
        "KMP_",
        "GOMP_",
        "MKL_",
        "OPENBLAS_",
    ),
    *("CUDA_", "NCCL_", "NVIDIA_", "TORCH_", "TF_", "XLA_", "JAX_", "FI_", "IPATH_", "HF_", "WANDB_"),
)

# Each host has its own, or none: they do not go along, and an agent that would have our variables has none of them.
OF_A_HOST = ("BYTEPS_JOB_TOKEN_FILE", "BYTEPS_HOST_ID", "BYTEPS_LAUNCHER_PID", "DMLC_NODE_HOST")


@dataclasses.dataclass
class HostPart:
    """What runs on one host."""

    host: Host
    worker_host: int | None = None  # its index among the worker hosts
    workers: int = 0
    servers: list[int] = dataclasses.field(default_factory=list)  # their ranks
    coordinator: bool = False


@dataclasses.dataclass(frozen=True)
class HostLayout:
    """The parts of a job, the first worker host's first."""

    parts: list[HostPart]
    worker_hosts: int
    workers: int
    servers: int
    colocated: bool = False  # --colocate: hosts of workers have a server each beside the dedicated ones

    @property
    def alone(self) -> bool:
        """One worker for itself: neither server nor coordinator."""
        return self.workers == 1 and self.servers == 0

    @property
    def coordinator(self) -> HostPart | None:
        """The part that the coordinator is on."""
        return next((part for part in self.parts if part.coordinator), None)


def lay_out(
    worker_hosts: Sequence[Host],
    server_hosts: Sequence[Host],
    workers: int | None,
    servers: int | None,
    coordinator: Host | None,
    environment: Environment,
    colocate: bool = False,
) -> HostLayout:
    """Spreads the roles. LaunchError if there are more than the hosts have places for.

    Workers fill the slots of the hosts in order. Servers go one to each slot of the server hosts; without such hosts
    each worker host gets one, if there are several. With `colocate` each worker host has one beside those. A host that
    is named for several roles is reached by the user and the port that any of them has.
    """
    if not worker_hosts:
        raise LaunchError("no hosts for workers: --hosts or --hostfile")
    slots = [host.slots or 1 for host in worker_hosts]
    if workers is not None and workers > sum(slots):
        raise LaunchError(
            f"--workers {workers}: the hosts have places for {sum(slots)}: "
            + ", ".join(f"{host.machine}: {count}" for host, count in zip(worker_hosts, slots))
        )
    parts: dict[str, HostPart] = {}
    left = sum(slots) if workers is None else workers
    used = 0
    for host, count in zip(worker_hosts, slots):
        here = min(count, left)
        left -= here
        if here > 0:
            parts[host.machine] = HostPart(host, used, here)
            used += 1
    total = sum(part.workers for part in parts.values())
    places = [host for host in server_hosts for _ in range(host.slots or 1)]
    if server_hosts and servers is not None and servers > len(places):
        raise LaunchError(
            f"--servers {servers}: the server hosts have places for {len(places)}; write name:N for N on one host"
        )
    forced = environment.flag("BYTEPS_FORCE_DISTRIBUTED")
    if not server_hosts:
        wanted = servers if servers is not None else (used if used > 1 else int(forced))
        places = [worker_hosts[rank % used] for rank in range(wanted)]
    elif servers is not None:
        places = places[:servers]
    if colocate and used == 1 and not server_hosts:
        raise LaunchError("--colocate: one worker host needs no server; --servers 1 asks for one anyway")
    if colocate and server_hosts:
        places += worker_hosts[:used]
    if not places and used > 1:
        raise LaunchError(f"--servers 0: {used} worker hosts need at least one server")
    if colocate and not server_hosts and len(places) < used:
        raise LaunchError(
            f"{len(places)} servers (--servers, DMLC_NUM_SERVER) contradict --colocate, which asks for one on each of "
            f"{used} worker hosts: leave one of them out"
        )
    if not places and forced:
        raise LaunchError("--servers 0 contradicts BYTEPS_FORCE_DISTRIBUTED=1: ask for a server or unset the variable")

    def part_on(host: Host) -> HostPart:
        part = parts.setdefault(host.machine, HostPart(host))
        part.host = part.host.also(host)
        return part

    for rank, host in enumerate(places):
        part_on(host).servers.append(rank)
    layout = HostLayout(list(parts.values()), used, total, len(places), colocate)
    if not layout.alone:
        part_on(coordinator or worker_hosts[0]).coordinator = True
        layout = dataclasses.replace(layout, parts=list(parts.values()))
    return layout


def passed_variables(environment: Environment, chosen: Sequence[str]) -> dict[str, str]:
    """The variables that other hosts get: those that a job reads, and those `chosen` by --env (NAME, NAME=value)."""
    here = environment.variables()
    passed = {
        name: value
        for name, value in here.items()
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and name not in PLACES
    }
    for name in OF_A_HOST:
        passed.pop(name, None)
    return {**passed, **environment.chosen(chosen)}


def common_variables(layout: HostLayout, root: tuple[str, int] | None, environment: Environment) -> dict[str, str]:
    """What all processes of the job are told; `root`: where the coordinator listens."""
    variables = {"DMLC_NUM_WORKER": str(layout.worker_hosts), "DMLC_NUM_SERVER": str(layout.servers)}
    if root is None:
        return variables
    variables["DMLC_PS_ROOT_URI"], variables["DMLC_PS_ROOT_PORT"] = root[0], str(root[1])
    variables["BYTEPS_JOB_ID"] = f"hosts-{os.urandom(6).hex()}"
    # The coordinator shall not end by itself: we end it when the last worker has ended.
    variables["BYTEPS_JOB_LINGER"] = "-1"
    if layout.servers > 0 and (layout.workers == 1 or environment.flag("BYTEPS_FORCE_DISTRIBUTED")):
        variables["BYTEPS_FORCE_DISTRIBUTED"] = "1"
    return variables


def host_variables(part: HostPart, layout: HostLayout) -> dict[str, str]:
    """What the processes of this host are told beside. The coordinator gives servers shares by who shares a link: with
    --colocate it shall not have to guess."""
    return {"BYTEPS_HOST_ID": f"host-{part.host.machine}"} if layout.colocated else {}


def members(layout: HostLayout) -> list[tuple[HostPart, list[ChildSpec]]]:
    """The processes of each part by name and role; what they run is for the agents to find out."""
    several = layout.worker_hosts > 1
    found = []
    for part in layout.parts:
        specs = [ChildSpec("coordinator", Role.COORDINATOR, [], {})] if part.coordinator else []
        specs += [ChildSpec(f"server {rank}", Role.SERVER, [], {}) for rank in part.servers]
        for local_rank in range(part.workers):
            name = f"worker {part.worker_host}.{local_rank}" if several else f"worker {local_rank}"
            specs.append(ChildSpec(name, Role.WORKER, [], {}))
        found.append((part, specs))
    return found


def start_request(
    part: HostPart,
    specs: Sequence[ChildSpec],
    numbers: Sequence[int],
    layout: HostLayout,
    command: Sequence[str],
    variables: dict[str, str],
) -> dict[str, Any]:
    """What the agent of a host is asked to start; `numbers` are those of `specs`."""
    services = []
    variables = {**variables, **host_variables(part, layout)}
    for spec, number in zip(specs, numbers):
        if spec.role is not Role.WORKER:
            rank = spec.name.rpartition(" ")[2]
            own = {"DMLC_RANK": rank} if spec.role is Role.SERVER else {}
            services.append({"id": number, "name": spec.name, "role": spec.role.value, "variables": own})
    workers = None
    if part.workers:
        workers = {
            "ids": [number for spec, number in zip(specs, numbers) if spec.role is Role.WORKER],
            "host": part.worker_host if layout.worker_hosts > 1 else None,
            "command": list(command),
            "variables": {"DMLC_WORKER_ID": str(part.worker_host)},
        }
    return {"services": services, "workers": workers, "variables": variables}
