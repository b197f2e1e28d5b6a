"""Two hosts, and a job on them that one of several launchers has started: what test_kill_matrix.py takes apart."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import sys
from collections.abc import Callable

import pytest
from launching import BPSLAUNCH, Launch, Spawn
from slurm_cluster import SlurmCluster
from ssh_hosts import SshHosts

_HERE = pathlib.Path(__file__).parent
_TRAINER = [sys.executable, str(_HERE / "trainer.py"), "0", "1000"]
_JOINER = [sys.executable, str(_HERE / "joiner.py"), "0"]

# How one of the first words of a command line ends that is ours (Python may have an option of its own). What a
# cluster's own software keeps on a host that nobody reaches any more is not ours to end.
_OURS = ("trainer.py", "joiner.py", "launch.py", "byteps_server")


@dataclasses.dataclass
class Site:
    """Where a job runs, and what runs of it. Hosts count from 0; None is where the user sits."""

    hosts: SshHosts
    slurm: SlurmCluster | None
    folder: pathlib.Path
    jobs: list[Launch] = dataclasses.field(default_factory=list)  # what was started by hand: mostly one

    @property
    def output(self) -> str:
        """Of all, but for the rounds that went well."""
        lines = "".join(job.stdout + job.stderr for job in self.jobs).splitlines()
        return "\n".join(line for line in lines if "round " not in line)

    def rounds(self) -> int:
        """How many rounds the workers have told of, together."""
        return sum(job.stdout.count("round ") for job in self.jobs)

    def find(self, host: int | None, *words: str) -> list[int]:
        """What has all these words in its command line."""
        return [pid for pid, line in self._processes(host).items() if all(word in line for word in words)]

    def workers(self, host: int) -> list[int]:
        """The trainers themselves, whatever else has their command line in its own."""
        trainers = {_TRAINER[1], _JOINER[1]}
        return [pid for pid, line in self._processes(host).items() if trainers & set(line.split()[1:3])]

    def services(self, host: int, role: str) -> list[int]:
        """Its servers ("server"), or its coordinator ("scheduler")."""
        wanted = f"DMLC_ROLE={role}".encode()
        found = self.find(host, "byteps_server")
        return [pid for pid in found if wanted in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]

    def all_processes(self) -> list[int]:
        """What runs of the job, on any host."""
        return [pid for host in (None, 0, 1) for pid in self._processes(host)]

    def left(self, cut_off: int | None) -> dict[str, dict[int, str]]:
        """What still runs of the job; on the host that is cut off, of ours."""
        found = self.hosts.processes()
        here = self._processes(None)
        if cut_off is not None:
            there = self.hosts[cut_off]
            others = {pid for pid, line in there.processes().items() if not _is_ours(line)}
            found[there.name] = {pid: line for pid, line in there.processes().items() if pid not in others}
            here = {pid: line for pid, line in here.items() if pid not in others}
        return {host: processes for host, processes in {**found, "here": here}.items() if processes}

    def job_folders(self) -> dict[str, list[str]]:
        """What is left of them on each host."""
        return {host.name: folders for host in (self.hosts[0], self.hosts[1]) if (folders := host.job_folders())}

    def _processes(self, host: int | None) -> dict[int, str]:
        if host is not None:
            return self.hosts[host].processes()
        return {pid: line for job in self.jobs for pid, line in job.processes().items()}


def _is_ours(line: str) -> bool:
    return any(word.endswith(_OURS) for word in line.split()[:3])


# ---- How each launcher starts the job, and what its parts are called ----

Start = Callable[[Site, Spawn, "dict[str, str]"], None]
Find = Callable[[Site], "list[int]"]


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a launcher, and what the output must say when it dies: one of several texts (none: nobody can)."""

    find: Find
    said: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Launcher:
    """One column of the matrix."""

    start: Start
    parts: dict[str, Part]  # what it has of the launcher itself, by name
    far_part: int | None = None  # which of the jobs runs on the second host
    seconds: float = 15.0  # from a death to the end of all


# In front of a trainer: it does not end on SIGTERM.
_DEAF = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh"]


# In front of a trainer: it is not bpslaunch's child, and something else runs beside it, in a session of its own.
_BEHIND_A_SHELL = ["sh", "-c", 'setsid sleep 1000 & "$@"; exit $?', "sh"]


def _start_ssh(before: list[str]) -> Start:
    def start(site: Site, spawn: Spawn, real: dict[str, str]) -> None:
        words = ["--ssh-args", site.hosts.ssh_args, "--hosts", "lh1,lh2", "--", *before, *_TRAINER]
        site.jobs.append(spawn(*site.hosts.here, *BPSLAUNCH, *words, variables=real))

    return start


def _start_allocation(site: Site, spawn: Spawn, real: dict[str, str]) -> None:
    assert site.slurm is not None
    words = ["salloc", "-N2", "--ntasks-per-node=1", *BPSLAUNCH, "--", *_TRAINER]
    site.jobs.append(spawn(*site.slurm.here, *words, variables={**site.slurm.variables, **real}))


def _start_srun(site: Site, spawn: Spawn, _real: dict[str, str]) -> None:
    assert site.slurm is not None
    words = ["srun", "--kill-on-bad-exit=1", "-N2", "-n2", *_JOINER]
    site.jobs.append(spawn(*site.slurm.here, *words, variables=site.slurm.variables))


def _start_mpi(kind: str, in_bpslaunch: bool = False) -> Start:
    def start(site: Site, spawn: Spawn, real: dict[str, str]) -> None:
        variables = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
        if in_bpslaunch:
            variables.update(real)
        words = [*BPSLAUNCH, "--", *_TRAINER] if in_bpslaunch else _JOINER
        site.jobs.append(spawn(*site.hosts.here, *_mpirun(kind, site), "-n", "2", *words, variables=variables))

    return start


def _mpirun(kind: str, site: Site) -> list[str]:
    program = shutil.which(f"mpirun.{kind}")
    if program is None:
        pytest.skip(f"mpirun of {kind} is not here: Debian's package {'openmpi-bin' if kind == 'openmpi' else 'mpich'}")
    agent = site.folder / "agent"
    # A client that hears nothing from its daemon gives up, and mpirun with it, as docs/launch/mpi.md recommends.
    patience = "-o ServerAliveInterval=2 -o ServerAliveCountMax=2"
    agent.write_text(f'#!/bin/sh\nexec ssh -F {site.hosts.config} {patience} "$@"\n')
    agent.chmod(0o755)
    file = site.folder / "hosts"
    addresses = [site.hosts[0].address, site.hosts[1].address]
    if kind == "openmpi":
        file.write_text("".join(f"{address} slots=1\n" for address in addresses))
        own = ["--allow-run-as-root", "--mca", "btl_vader_single_copy_mechanism", "none", "-x", "LD_LIBRARY_PATH"]
        net = ["--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "10.231.7.0/24"]
        return [program, *own, "--hostfile", str(file), *net]
    file.write_text("".join(f"{address}:1\n" for address in addresses))
    return [program, "-f", str(file), "-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "br0"]


def _start_torchrun(site: Site, spawn: Spawn, _real: dict[str, str]) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    known = site.folder / "etc_hosts"  # torchrun resolves the name of its own host
    known.write_text("127.0.0.1 localhost\n10.231.7.1 lh1\n10.231.7.2 lh2\n")
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "test"]
    for number in (0, 1):
        host = site.hosts[number]
        temporary = site.folder / f"torchrun{number}"
        temporary.mkdir()
        own = ["nsenter", f"--net=/run/netns/{host.namespace}", "unshare", "--uts", "--ipc", "--mount"]
        named = ["sh", "-c", f'hostname {host.name}; mount --bind {known} /etc/hosts; exec "$@"', "sh"]
        meet = ["--rdzv-endpoint", f"{site.hosts[0].address}:29500", "--local-addr", host.address]
        command = [sys.executable, "-m", "torch.distributed.run", *where, *meet, *_JOINER[1:]]
        variables = {"TMPDIR": str(temporary), "GLOO_SOCKET_IFNAME": "eth0"}
        site.jobs.append(spawn(*own, *named, *command, variables=variables))


def _first_job(site: Site) -> list[int]:
    return [site.jobs[0].process.pid]


def _client_of_second(site: Site) -> list[int]:
    return site.find(None, "ssh ", site.hosts[1].address)


def step_daemons(site: Site) -> list[int]:
    """Slurm's counterpart of a session of sshd: what the processes of a step hang on, on the second host."""
    return [pid for pid, line in site.hosts[1].processes().items() if line.startswith("slurmstepd: [")]


def _lost(machine: str) -> tuple[str, ...]:
    """An agent whose guardian dies first ends its processes: then their ends are told, with their host."""
    return (f"host {machine} was lost", f"(host {machine}", 'rank 1 (host "lh2"')


LAUNCHERS = {
    "ssh": Launcher(
        _start_ssh(_BEHIND_A_SHELL),
        {
            "launcher": Part(_first_job, ("bpslaunch itself was killed",)),
            "whole launcher": Part(lambda site: site.find(None, "launch.py")),
            "remote launcher": Part(lambda site: site.find(1, "--agent"), _lost("lh2")),
            "client": Part(lambda site: site.find(None, "ssh ", "lh2"), ("host lh2 was lost",)),
            "daemon": Part(lambda site: site.hosts[1].sessions(), ("host lh2 was lost",)),
        },
        seconds=10.0,
    ),
    "ssh, deaf trainers": Launcher(_start_ssh(_DEAF), {}, seconds=10.0),
    "slurm": Launcher(
        _start_allocation,
        {
            "launcher": Part(lambda site: site.find(None, "launch.py")),
            "remote launcher": Part(lambda site: site.find(1, "--agent"), _lost("ln2")),
            "client": Part(lambda site: site.find(None, "srun ", "--nodelist=ln2"), ("host ln2 was lost",)),
            "daemon": Part(step_daemons, ("host ln2",)),
        },
    ),
    # Its daemon: see test_srun_without_a_step_daemon.
    "srun": Launcher(_start_srun, {"launcher": Part(_first_job)}),
    "openmpi": Launcher(
        _start_mpi("openmpi"),
        {
            "launcher": Part(_first_job),
            "remote launcher": Part(lambda site: site.find(1, "orted"), ("lost communication with a remote daemon",)),
            "client": Part(_client_of_second, ("ORTE",)),
            "daemon": Part(lambda site: site.hosts[1].sessions(), ("ORTE",)),
        },
    ),
    # Hydra needs ssh for the start alone: see test_hydra_needs_no_ssh_any_more.
    "mpich": Launcher(
        _start_mpi("mpich"),
        {
            "launcher": Part(_first_job),
            "remote launcher": Part(
                lambda site: site.find(1, "hydra_pmi_proxy"), ("assert (!closed) failed", "rank 1 (host")
            ),
        },
    ),
    # For trainers that are not written in Python.
    "mpich with bpslaunch": Launcher(_start_mpi("mpich", in_bpslaunch=True), {"launcher": Part(_first_job)}),
    "torchrun": Launcher(
        _start_torchrun,
        {
            "launcher": Part(_first_job),
            "remote launcher": Part(lambda site: [site.jobs[1].process.pid], ("what has started worker",)),
        },
        far_part=1,
    ),
}
