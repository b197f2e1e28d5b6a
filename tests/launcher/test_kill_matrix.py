"""Whatever dies, under whatever has started the job: the exit code is not zero, the cause is named, nothing is left on
any host, within 15 seconds; over ssh, where both ends are ours, within 10.

    victims:   the launcher (its first process, or all of them), its part on another host, the client and the daemon
               between them, a worker, a server, the coordinator, the network of a host
    launchers: bpslaunch over ssh and in a Slurm allocation, tasks of srun, mpirun of Open MPI and of MPICH, torchrun;
               Ray is in tests/frameworks/ray

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
import time
from collections.abc import Iterator

import pytest
from kill_site import LAUNCHERS, Site
from launching import Launch, Spawn, wait_until
from slurm_cluster import SlurmCluster
from ssh_hosts import SshHosts

PARTS = ("launcher", "whole launcher", "remote launcher", "client", "daemon")
VICTIMS = (*PARTS, "worker", "server", "coordinator", "network")

# What the output must say, one of several texts: of a member of the job its role and rank, or what the launcher calls
# it; of a network its host.
CAUSES = {
    "worker": ("worker rank 1 (host", "worker 1.0 (host l", "signal 9", "SIGKILL", "Signal 9", "KILLED BY SIGNAL: 9"),
    "server": ("server rank 1 (host", "server 1 (host l"),
    "coordinator": ("coordinator (host l", "coordinator 10.231.7.1:"),
    "network": ("rank 1 (host", "host lh2", "host ln2", "Node failure on ln2", "server 10.231.7.2 not responding"),
}


def within(launcher: str) -> float:
    """The seconds that the job has to end; on a machine that has more to do than cores, more."""
    return LAUNCHERS[launcher].seconds * max(1.0, 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0)))


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
        with SlurmCluster(tmp_path, 2, node_seconds=8) as slurm:
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
    kind = LAUNCHERS[launcher]
    kind.start(site, spawn, real)
    wait_until(lambda: site.rounds() >= 6, lambda: f"no rounds: {site.output}")
    act(site, launcher, victim)
    died = time.monotonic()
    cut_off = 1 if victim == "network" else None
    reached = [job for number, job in enumerate(site.jobs) if cut_off is None or number != kind.far_part]
    try:
        if cut_off is None or kind.gives_up:
            wait_until(
                lambda: all(job.process.poll() is not None for job in reached),
                lambda: f"still runs after {within(launcher):.0f} s: {site.left(cut_off)}\n{site.output}",
                within(launcher),
            )
        else:  # What is ours ends without it; the user ends the rest.
            wait_until(
                lambda: not site.workers(0) and not site.services(0, "server"),
                lambda: f"{site.left(None)}",
                within(launcher),
            )
            kill(_all_of(reached))
        ended = time.monotonic() - died
        assert all(job.wait() != 0 for job in reached)
        wait_until(
            lambda: not site.left(cut_off),
            lambda: f"left behind: {site.left(cut_off)}\n{site.output}",
            max(1.0, died + within(launcher) - time.monotonic()),
        )
        print(f"{launcher}, {victim}: ended after {ended:.1f} s, all gone after {time.monotonic() - died:.1f} s")
        said = kind.parts[victim].said if victim in PARTS else CAUSES[victim]
        assert not said or any(text in site.output for text in said), site.output
    finally:
        _clean(site)


def _all_of(jobs: list[Launch]) -> list[int]:
    return [pid for job in jobs for pid in job.processes()]


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
    LAUNCHERS[launcher].start(site, spawn, {})
    wait_until(lambda: site.rounds() >= 6, lambda: f"no rounds: {site.output}")
    kill(site.find(None, "ssh ", site.hosts[1].address) if victim == "client" else site.hosts[1].sessions())
    seen = site.rounds()
    wait_until(lambda: site.rounds() >= seen + 6, lambda: f"no rounds any more: {site.output}")
    kill(site.workers(1))
    assert site.jobs[0].wait(within(launcher)) != 0
    wait_until(lambda: not site.left(None), lambda: f"left behind: {site.left(None)}", within(launcher))
