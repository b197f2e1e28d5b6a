"""The processes of a BytePS job, each on a host of a lab.

    layout = Layout(workers=4, servers=4, colocate=False)
    hosts = layout.build(lab, rate=200_000_000)
    specs = plan(layout, lab, command, environment, folder)       # for launcher.supervisor

Host names: worker0, worker1, ..., server0, ...; with colocated servers the servers of the worker hosts have the first
ranks, the dedicated ones the following. The coordinator is on a host of its own whose cable has no bound.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence

from launcher.affinity import assign
from launcher.child import ChildSpec, Role
from launcher.command import in_debugger, worker_command
from launcher.environment import Environment
from launcher.failure import LaunchError
from launcher.installation import server_binary
from launcher.job_folder import JobFolder
from launcher.workers import local_workers

from .lab import Host, Lab

COORDINATOR = "coordinator"
_PORT = 9000  # the coordinator's host is its own: every port is free


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which hosts there are."""

    workers: int  # hosts, each with `local` workers
    servers: int  # dedicated hosts
    colocate: bool = False  # a server on each worker host, too
    local: int = 1  # workers on each host

    @property
    def total_servers(self) -> int:
        """All servers of the job."""
        return self.servers + (self.workers if self.colocate else 0)

    def worker_hosts(self) -> list[str]:
        """Their names, by DMLC_WORKER_ID."""
        return [f"worker{index}" for index in range(self.workers)]

    def server_hosts(self) -> list[str]:
        """The names of the hosts of all servers, by rank."""
        colocated = self.worker_hosts() if self.colocate else []
        return colocated + [f"server{index}" for index in range(len(colocated), self.total_servers)]

    def hosts(self) -> list[str]:
        """All but the coordinator's."""
        return list(dict.fromkeys(self.worker_hosts() + self.server_hosts()))

    def optimum(self) -> float:
        """How often the bytes of a tensor must cross the busiest link at least, in each direction: in the time of so
        many bytes over one link a round of one byte can be done."""
        n, k = self.workers, self.servers
        if self.colocate and n == 1:
            return 0.0  # nothing crosses a link: the worker's own host holds all
        if self.colocate:
            return 2 * n * (n - 1) / (n * n + k * n - 2 * k) if k <= n else 1.0
        return max(1.0, n / k)

    def check(self) -> None:
        """LaunchError if there can be no such job."""
        if self.total_servers == 0:
            raise LaunchError("no servers: --servers N for hosts of their own, --colocate for servers on worker hosts")

    def build(self, lab: Lab, rate: int | None, rates: Mapping[str, int]) -> None:
        """Makes the hosts. `rates`: of single hosts, instead of `rate`."""
        unknown = set(rates).difference(self.hosts())
        if unknown:
            raise LaunchError(f"--slow {', '.join(sorted(unknown))}: there are {', '.join(self.hosts())}")
        lab.add_host(COORDINATOR)
        for name in self.hosts():
            lab.add_host(name, rates.get(name, rate))


def variables_for(layout: Layout, lab: Lab, environment: Environment, folder: JobFolder) -> dict[str, str]:
    """What all processes of the job have in common."""
    variables = {
        name: value
        for name, value in environment.variables().items()
        # What is left over of another job.
        if not name.startswith("DMLC_")
        and name not in ("BYTEPS_COORDINATOR_FD", "BYTEPS_GLOBAL_RANK", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
    }
    variables["DMLC_NUM_WORKER"] = str(layout.workers)
    variables["DMLC_NUM_SERVER"] = str(layout.total_servers)
    variables["DMLC_PS_ROOT_URI"] = lab.hosts[COORDINATOR].address
    variables["DMLC_PS_ROOT_PORT"] = str(_PORT)
    if layout.workers == 1:
        variables["BYTEPS_FORCE_DISTRIBUTED"] = "1"  # several hosts use servers in any case
    variables["BYTEPS_JOB_ID"] = f"netlab-{secrets.token_hex(6)}"
    # We end the coordinator when the last worker has ended.
    variables["BYTEPS_JOB_LINGER"] = "-1"
    # For peers that are measured on the same medium.
    variables["GLOO_SOCKET_IFNAME"] = "lo" if lab.loopback else "eth0"
    if environment.text("BYTEPS_JOB_TOKEN") is None and environment.text("BYTEPS_JOB_TOKEN_FILE") is None:
        variables.pop("BYTEPS_JOB_TOKEN", None)
        variables["BYTEPS_JOB_TOKEN_FILE"] = str(folder.write_token())
    if layout.colocate and not lab.loopback:
        variables.setdefault("BYTEPS_ENABLE_MIXED_MODE", "1")
    return variables


def _link(lab: Lab, host: str) -> dict[str, str]:
    """Each host has a link of its own, unless all are on one loopback interface: then this machine's own id says so."""
    return {} if lab.loopback else {"BYTEPS_HOST_ID": host}


def plan(
    layout: Layout, lab: Lab, command: Sequence[str], environment: Environment, folder: JobFolder
) -> list[ChildSpec]:
    """What to start where, in this order."""
    command = worker_command(command, environment)
    binary = in_debugger([server_binary(environment)], environment)
    common = variables_for(layout, lab, environment, folder)

    def service(name: str, role: Role, host: Host, own: Mapping[str, str]) -> ChildSpec:
        variables = {**common, **_link(lab, host.name), **own}
        return ChildSpec(name=name, role=role, command=binary, variables=variables, enter=host.enter)

    specs = [service("coordinator", Role.COORDINATOR, lab.hosts[COORDINATOR], {"DMLC_ROLE": "scheduler"})]
    for rank, name in enumerate(layout.server_hosts()):
        own = {"DMLC_ROLE": "server", "DMLC_RANK": str(rank)}
        specs.append(service(f"server {rank}", Role.SERVER, lab.hosts[name], own))
    # Without nodes: the network cards near them are this machine's, and not those of a host of the lab.
    cores = dataclasses.replace(assign(environment, layout.local), nodes=[])
    for index, name in enumerate(layout.worker_hosts()):
        # All of them share the cores of this machine.
        own = {"OMP_NUM_THREADS": "1", **common, **_link(lab, name), "DMLC_WORKER_ID": str(index)}
        for spec in local_workers(command, environment, own, cores, index):
            specs.append(dataclasses.replace(spec, enter=lab.hosts[name].enter, reads_stdin=False))
    return specs
