"""Whatever of a Ray job dies: the driver's exit code is not zero, the cause is named, nothing of the job is left on any
node, within 15 seconds of the job's own time. The column of Ray to tests/launcher/test_kill_matrix.py.

Nodes are hosts in namespaces, two of them, with a worker and a server each; what can be lost on a node is lost on the
second, but for the coordinator and the driver. How soon Ray itself gives up a node is set: see ray_hosts.PATIENCE.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from launching import wait_until
from own_time import OwnTime
from ray_hosts import RayHosts

_DRIVER = str(pathlib.Path(__file__).with_name("ray_driver.py"))
_SECONDS = 15.0
_START_SECONDS = 180.0

# What the driver must say, one of several texts; of a killed driver nobody can.
SAID = {
    "worker": ("10.231.7.2", 'host "lh2"'),
    "server actor": ("server rank", "10.231.7.2"),
    "server": ("server rank",),
    "coordinator": ("coordinator",),
    "driver": (),
    "raylet": ("10.231.7.2", 'host "lh2"'),
    "node": ("10.231.7.2", 'host "lh2"'),
    "network": ("10.231.7.2", 'host "lh2"'),
}
# The cluster is whole afterwards.
_SPARES_NODES = ("worker", "server actor", "server", "coordinator", "driver")


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    with RayHosts(tmp_path_factory.mktemp("ray"), 2) as cluster:
        yield cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: pathlib.Path, victim: str) -> Iterator[RayHosts]:
    if victim in _SPARES_NODES:
        yield request.getfixturevalue("lasting")
        return
    with RayHosts(tmp_path, 2) as cluster:
        yield cluster


def kill(pids: list[int]) -> None:
    assert pids, "nothing to kill"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def services(cluster: RayHosts, role: str, hosts: tuple[int, ...]) -> list[int]:
    found = []
    for number in hosts:
        for pid, line in cluster.ours(number).items():
            with contextlib.suppress(OSError):
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if "byteps_server" in line and f"DMLC_ROLE={role}".encode() in variables:
                    found.append(pid)
    return found


def act(cluster: RayHosts, victim: str) -> None:
    on_second = cluster.hosts[1].processes()
    if victim == "worker":
        kill([pid for pid, line in on_second.items() if line.startswith("ray::Worker")])
    elif victim == "server actor":
        kill([pid for pid, line in on_second.items() if line.startswith("ray::Server")])
    elif victim == "server":
        kill(services(cluster, "server", (1,)))
    elif victim == "coordinator":
        kill(services(cluster, "scheduler", (0, 1)))
    elif victim == "driver":
        kill([pid for pid, line in cluster.hosts[0].processes().items() if _DRIVER in line and "nsenter" not in line])
    elif victim == "raylet":
        kill([pid for pid, line in on_second.items() if line.split()[0].endswith("/raylet")])
    elif victim == "node":
        cluster.crash(1)
    else:
        cluster.hosts[1].unplug(cluster.hosts.center)


@pytest.mark.parametrize("victim", SAID)
def test_whatever_dies(cluster: RayHosts, tmp_path: pathlib.Path, victim: str) -> None:
    log = tmp_path / "driver.log"
    driver = cluster.start_driver(log, _DRIVER, cluster.address)
    wait_until(
        lambda: "trains" in log.read_text() or driver.poll() is not None,
        lambda: f"it does not train: {log.read_text()}",
        _START_SECONDS,
    )
    assert driver.poll() is None, log.read_text()
    assert cluster.ours(0) and cluster.ours(1)
    clock = OwnTime(lambda: [driver.pid, *cluster.ours(0), *cluster.ours(1)])
    act(cluster, victim)
    clock.wait_until(lambda: driver.poll() is not None, _SECONDS, lambda: f"the driver still runs: {log.read_text()}")
    ended = str(clock)
    assert driver.returncode != 0

    def left() -> list[str]:
        return [*cluster.ours(0).values(), *cluster.ours(1).values()]

    clock.wait_until(lambda: not left(), _SECONDS, lambda: f"left behind: {left()}\n{log.read_text()}")
    print(f"ray, {victim}: ended after {ended}, all gone after {clock}")
    assert not SAID[victim] or any(text in log.read_text() for text in SAID[victim]), log.read_text()
