"""Whatever dies, under whatever has started the job: the exit code is not zero, the cause is named, nothing is left on
any host, within 15 seconds of the job's own time (own_time.py); over ssh, where both ends are ours, within 10.

    victims:   the launcher (its first process, or all of them), its part on another host, the client and the daemon
               between them, a worker, a server, the coordinator, the network of a host
    launchers: bpslaunch over ssh and in a Slurm allocation, tasks of srun, mpirun of Open MPI and of MPICH, torchrun;
               Ray is in tests/frameworks/ray/test_ray_kill_matrix.py

Each job has two hosts with a worker and a server each; what can be lost on a host is lost on the second, but for the
coordinator and the launcher. A cell whose programs are not on this machine is skipped and says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
from collections.abc import Iterator

import pytest
from kill_site import LAUNCHERS, Site, step_daemons
from launching import Spawn, wait_until
from own_time import OwnTime
from slurm_cluster import SlurmCluster
from ssh_hosts import SshHosts

PARTS = ("launcher", "whole launcher", "remote launcher", "client", "daemon")
VICTIMS = (*PARTS, "worker", "server", "coordinator", "network")

# What the output must say, one of several texts: of a member of the job its role and rank, or what the launcher calls
# it; of a network its host.
CAUSES = {
    "worker": ('worker rank 1 (host "l', "worker 1.0 (host l"),
    "server": ("server rank 1 (host", "server 1 (host l"),
    "coordinator": ("coordinator (host l", "coordinator 10.231.7.1:"),
    "network": ("rank 1 (host", "host lh2", "host ln2", "Node failure on ln2", "server 10.231.7.2 not responding"),
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 2) as slurm:
        yield slurm


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: pathlib.Path, launcher: str, victim: str) -> Iterator[Site]:
    if launcher != "ssh" and importlib.util.find_spec("byteps") is None:
        pytest.skip("the package byteps is not installed")
    if launcher not in ("slurm", "srun"):
        with SshHosts(tmp_path, 2) as hosts:
            yield Site(hosts, None, tmp_path)
    elif victim == "network":
        # Slurm itself sees that a node is gone when SlurmdTimeout is over.
        with SlurmCluster(tmp_path, 2, node_seconds=5) as slurm:
            yield Site(slurm.hosts, slurm, tmp_path)
    else:
        slurm = request.getfixturevalue("slurm")
        yield Site(slurm.hosts, slurm, tmp_path)


def kill(pids: list[int]) -> None:
    assert pids, "nothing to kill"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # A tree may end by its first process.
            os.kill(pid, signal.SIGKILL)


def act(site: Site, launcher: str, victim: str) -> None:
    if victim in PARTS:
        kill(LAUNCHERS[launcher].parts[victim].find(site))
    elif victim == "worker":
        kill(site.workers(1))
    elif victim == "network":
        site.hosts[1].unplug(site.hosts.center)
    elif victim == "coordinator":
        kill(site.services(0, "scheduler"))
    else:
        kill(site.services(1, "server"))


@pytest.mark.parametrize(
    ("launcher", "victim"),
    [
        (launcher, victim)
        for launcher, kind in LAUNCHERS.items()
        for victim in VICTIMS
        if victim not in PARTS or victim in kind.parts
    ],
)
def test_whatever_dies(site: Site, spawn: Spawn, real: dict[str, str], launcher: str, victim: str) -> None:
    take_apart(site, spawn, real, launcher, victim)


def test_a_network_that_slurm_does_not_miss(spawn: Spawn, real: dict[str, str], tmp_path: pathlib.Path) -> None:
    """SlurmdTimeout is 300 s by default; bpslaunch and its agents in an allocation notice by themselves."""
    with SlurmCluster(tmp_path, 2) as slurm:
        take_apart(Site(slurm.hosts, slurm, tmp_path), spawn, real, "slurm", "network")


def take_apart(site: Site, spawn: Spawn, real: dict[str, str], launcher: str, victim: str) -> None:
    """Starts a job, has something die, and waits for the end of all."""
    kind = LAUNCHERS[launcher]
    cut_off = 1 if victim == "network" else None
    try:
        kind.start(site, spawn, real)
        wait_until(lambda: site.rounds() >= 6, lambda: f"no rounds: {site.output}")
        clock = OwnTime(site.all_processes)
        act(site, launcher, victim)
        reached = [job for number, job in enumerate(site.jobs) if cut_off is None or number != kind.far_part]
        clock.wait_until(
            lambda: all(job.process.poll() is not None for job in reached),
            kind.seconds,
            lambda: f"still runs: {site.left(cut_off)}\n{site.output}",
        )
        ended = str(clock)
        assert all(job.wait() != 0 for job in reached)
        clock.wait_until(
            lambda: not site.left(cut_off) and not site.job_folders(),
            kind.seconds,
            lambda: f"left behind: {site.left(cut_off)} {site.job_folders()}\n{site.output}",
        )
        print(f"{launcher}, {victim}: ended after {ended}, all gone after {clock}")
        said = kind.parts[victim].said if victim in PARTS else CAUSES[victim]
        assert not said or any(text in site.output for text in said), site.output
    finally:
        _clean(site)


def _clean(site: Site) -> None:
    for job in site.jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
    for folder in (site.folder / "tmp").glob("ompi.*"):  # Open MPI's own, when its mpirun is killed.
        shutil.rmtree(folder)


@pytest.mark.parametrize(("launcher", "victim"), [("mpich", "client"), ("mpich", "daemon")])
def test_hydra_needs_no_ssh_any_more(site: Site, spawn: Spawn, launcher: str, victim: str) -> None:
    """Its parts are connected directly: the job goes on, and ends as ever."""
    try:
        LAUNCHERS[launcher].start(site, spawn, {})
        wait_until(lambda: site.rounds() >= 6, lambda: f"no rounds: {site.output}")
        kill(site.find(None, "ssh ", site.hosts[1].address) if victim == "client" else site.hosts[1].sessions())
        seen = site.rounds()
        wait_until(lambda: site.rounds() >= seen + 6, lambda: f"no rounds any more: {site.output}")
        clock = OwnTime(site.all_processes)
        kill(site.workers(1))
        clock.wait_until(
            lambda: site.jobs[0].process.poll() is not None and not site.left(None),
            LAUNCHERS[launcher].seconds,
            lambda: f"left behind: {site.left(None)}",
        )
        assert site.jobs[0].wait() != 0
    finally:
        _clean(site)


@pytest.mark.parametrize(("launcher", "victim"), [("srun", "daemon")])
def test_srun_without_a_step_daemon(site: Site, spawn: Spawn, launcher: str, victim: str) -> None:
    """All tasks end with the cause; srun itself goes on waiting for its slurmstepd, until scancel."""
    del victim
    kind = LAUNCHERS[launcher]
    assert site.slurm is not None
    try:
        kind.start(site, spawn, {})
        wait_until(lambda: site.rounds() >= 6, lambda: f"no rounds: {site.output}")
        clock = OwnTime(site.all_processes)
        kill(step_daemons(site))
        clock.wait_until(
            lambda: not site.hosts.processes(),
            kind.seconds,
            lambda: f"left behind: {site.hosts.processes()}\n{site.output}",
        )
        assert "rank 1 (host" in site.output, site.output
        site.slurm.run("scancel", "--user=root")
        clock.wait_until(lambda: site.jobs[0].process.poll() is not None, 60.0, lambda: f"still runs: {site.output}")
        assert site.jobs[0].wait() != 0
        site.slurm.wait_ready()
    finally:
        _clean(site)
