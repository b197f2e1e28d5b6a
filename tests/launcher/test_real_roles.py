"""Roles started one by one, with the variables exported by hand: several hosts, simulated on this one."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import time
from collections.abc import Callable

import pytest
from greeting_frame import frame
from launching import BPSLAUNCH, Launch, Spawn, wait_until
from role_job import LARGE, TOKEN, RoleJob


def test_hosts_with_different_numbers_of_workers(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, hosts=3, servers=2)
    services = [job.coordinator(), job.server(), job.server()]
    hosts = [job.host(0, 1, "5", LARGE), job.host(1, 3, "5", LARGE), job.host(2, 2, "5", LARGE)]
    for host in hosts:
        assert host.wait() == 0, host.stderr
    rank = 0
    for index, (host, workers) in enumerate(zip(hosts, (1, 3, 2))):
        for local in range(workers):
            assert f"[worker {index}.{local}] rank {rank} of 6, local {local} of {workers}" in host.stdout
            rank += 1
    for service in services:  # BYTEPS_JOB_LINGER=0: they end by themselves.
        assert service.wait() == 0, service.stderr


@pytest.mark.parametrize("order", list(itertools.permutations(["coordinator", "server", "worker"])), ids="-".join)
def test_any_order_of_starting(spawn: Spawn, real: dict[str, str], order: tuple[str, ...]) -> None:
    job = RoleJob(spawn, real, hosts=2)
    launches: list[Launch] = []
    for role in order:
        if role == "coordinator":
            launches.append(job.coordinator())
        elif role == "server":
            launches.append(job.server())
        else:
            launches.extend(job.plain(index, "2", "10") for index in range(2))
        wait_settled(launches)
    for launch in launches:
        assert launch.wait() == 0, launch.stderr


def wait_settled(launches: list[Launch]) -> None:
    """Waits until all of these have loaded what they need and wait for something, or have ended."""

    def settled() -> bool:
        for launch in launches:
            with contextlib.suppress(OSError):
                proc = pathlib.Path(f"/proc/{launch.process.pid}")
                state = proc.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                started = any(part in proc.joinpath("maps").read_text() for part in ("libbyteps.so", "byteps_server"))
                if launch.process.poll() is None and not (started and state == "S"):
                    return False
        return True

    wait_until(settled, lambda: "a process does not come to rest")


@pytest.mark.parametrize("victim, told", [("worker", "worker"), ("server", "server"), ("coordinator", "coordinator")])
def test_the_library_names_the_dead(spawn: Spawn, real: dict[str, str], victim: str, told: str) -> None:
    """No launcher watches over both hosts: the survivors must find out by themselves, and say who."""
    job = RoleJob(spawn, real, hosts=3)
    coordinator, server = job.coordinator(), job.server()
    workers = [job.plain(index, "0", LARGE) for index in range(3)]
    for worker in workers:
        worker.wait_for("round 3")
    dead = {"worker": workers[1], "server": server, "coordinator": coordinator}[victim]
    began = time.monotonic()
    dead.process.kill()
    dead.wait()
    survivors = [worker for worker in workers if worker is not dead]
    for worker in survivors:
        assert worker.wait() == 3, worker.stderr
        assert told in worker.stderr and "error " in worker.stderr
        if victim == "worker":
            assert f"pid {dead.process.pid}" in worker.stderr or "rank 1" in worker.stderr
    assert time.monotonic() - began < 15
    for service in (coordinator, server):
        if service is not dead:
            service.process.terminate()
            service.wait()


@pytest.mark.parametrize("servers", [0, 1])
def test_one_host_whose_workers_start_without_bpslaunch(spawn: Spawn, real: dict[str, str], servers: int) -> None:
    here = {"BYTEPS_FORCE_DISTRIBUTED": "", "BYTEPS_LOCAL_SIZE": "2"}
    job = RoleJob(spawn, real, hosts=1, servers=servers, **here)
    services = [job.coordinator(), *(job.server() for _ in range(servers))]
    workers = [job.plain(0, "3", LARGE, BYTEPS_LOCAL_RANK=str(local)) for local in range(2)]
    for local, worker in enumerate(workers):
        assert worker.wait() == 0, worker.stderr
        assert f"rank {local} of 2, local {local} of 2" in worker.stdout
    for service in services:
        assert service.wait() == 0, service.stderr


def test_a_death_is_noticed_though_a_forked_child_lives(spawn: Spawn, real: dict[str, str]) -> None:
    """The child of a killed worker holds its sockets: nothing is heard of the death but from the kernel."""
    # Over shared memory the server would notice it by itself, and say it in other words.
    job = RoleJob(spawn, real, hosts=2, BYTEPS_PEER_TIMEOUT="1000", BYTEPS_SHM="0")
    coordinator, server = job.coordinator(), job.server()
    survivor, victim = job.plain(0, "0", LARGE), job.plain(1, "0", LARGE, TRAINER_FORKS="1")
    for worker in (survivor, victim):
        worker.wait_for("round 3")
    (child,) = (int(line.split()[1]) for line in victim.stdout.splitlines() if line.startswith("forked"))
    try:
        victim.process.kill()
        victim.wait()
        assert survivor.wait() == 3, survivor.stderr
        assert f"pid {victim.process.pid}" in survivor.stderr and "its process has ended" in survivor.stderr
        os.kill(child, 0)  # It has lived all the time.
    finally:
        os.kill(child, signal.SIGKILL)
    victim.wait_gone()
    for service in (coordinator, server):
        service.process.terminate()
        service.wait()


def test_nobody_there(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, hosts=2, BYTEPS_START_TIMEOUT="2")
    worker = job.plain(0, "1", "10")
    assert worker.wait() == 3
    assert f"127.0.0.1:{job.port}" in worker.stderr


def test_who_is_missing(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, hosts=2, servers=1, BYTEPS_START_TIMEOUT="5")
    coordinator = job.coordinator(BYTEPS_START_TIMEOUT="100")
    wait_settled([coordinator])
    host = job.host(0, 2, "1", "10")
    assert host.wait() == 3
    assert "host 1" in host.stderr and "server" in host.stderr
    coordinator.process.terminate()
    coordinator.wait()


@pytest.mark.parametrize(
    ("name", "value"), [("DMLC_ENABLE_RDMA", "ucx"), ("BYTEPS_PARTITION_BYTES", "abc"), ("BYTEPS_TRANSPORT", "pigeon")]
)
def test_what_is_wrong_everywhere_ends_every_role_at_once(
    spawn: Spawn, real: dict[str, str], name: str, value: str
) -> None:
    job = RoleJob(spawn, real, hosts=2, **{name: value})
    began = time.monotonic()
    roles = [job.coordinator(), job.server(), job.plain(0, "1", "10"), job.plain(1, "1", "10")]
    for role in roles:
        assert role.wait() != 0
        assert value in role.stderr and name in role.stderr
    # A member that tells nobody takes half a minute.
    assert time.monotonic() - began < 25


def test_a_place_that_is_taken(spawn: Spawn, real: dict[str, str]) -> None:
    """Two workers of one place: one of them gets an error of its own, the other waits for the right one, and works."""
    job = RoleJob(spawn, real, hosts=2, BYTEPS_START_TIMEOUT="60")
    services = [job.coordinator(), job.server()]
    rivals = [job.plain(0, "2", "10") for _ in range(2)]
    wait_until(
        lambda: any(rival.process.poll() is not None for rival in rivals),
        lambda: "both wait: " + "".join(rival.stderr for rival in rivals),
    )
    refused, first = sorted(rivals, key=lambda rival: rival.process.poll() is None)
    assert refused.wait() == 3
    assert "error 6: " in refused.stderr and "wants a place that is taken: DMLC_WORKER_ID=0" in refused.stderr
    assert f"pid {refused.process.pid}" in refused.stderr and f"pid {first.process.pid}" in refused.stderr
    right = job.plain(1, "2", "10")
    for launch in (first, right, *services):
        assert launch.wait() == 0, launch.stderr


def test_the_coordinators_port_is_taken(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, hosts=2)
    with socket.create_server(("127.0.0.1", job.port)):
        coordinator = job.coordinator()
        assert coordinator.wait() not in (0, None)
    assert f"127.0.0.1:{job.port}" in coordinator.stderr and "in use" in coordinator.stderr


@pytest.mark.parametrize("token", [TOKEN, "the other job's own, just as long"], ids=["same token", "another token"])
def test_another_job_at_the_same_port(spawn: Spawn, real: dict[str, str], token: str) -> None:
    """Every role of it ends at once, and names the port; the job that was there first works on."""
    job = RoleJob(spawn, real, hosts=2)
    services = [job.coordinator(), job.server()]
    workers = [job.plain(index, "0", LARGE) for index in range(2)]
    for worker in workers:
        worker.wait_for("round 1")
    began = time.monotonic()
    other = RoleJob(spawn, real, hosts=2, DMLC_PS_ROOT_PORT=str(job.port), BYTEPS_JOB_TOKEN=token)
    roles = [other.coordinator(), other.server(), other.plain(0, "0", LARGE), other.host(1, 2, "0", LARGE)]
    for role in roles:
        assert role.wait() not in (0, None), role.stderr
        assert f"127.0.0.1:{job.port}" in role.stderr and "another DMLC_PS_ROOT_PORT" in role.stderr, role.stderr
        assert role.stdout == ""
    assert time.monotonic() - began < 20
    for worker in workers:
        worker.wait_for("round", worker.stdout.count("round") + 3)
        assert worker.stderr == ""
    for launch in [*workers, *services]:
        launch.process.terminate()
        launch.wait()


def test_another_token(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, hosts=2)
    coordinator = job.coordinator()
    worker = job.plain(0, "1", "10", BYTEPS_JOB_TOKEN="a wrong one, just as long as that")
    assert worker.wait() == 3
    assert "error 16: " in worker.stderr and "token" in worker.stderr.lower()
    assert TOKEN not in worker.stderr
    coordinator.process.terminate()
    coordinator.wait()


@pytest.mark.parametrize(
    "words, told",
    [
        (frame(b"9.9.9", frame_version=99), "BytePS 9.9.9 (control protocol 99"),
        (frame(b"9.9.9", control_version=99), "9.9.9"),
    ],
    ids=["frame", "challenge"],
)
def test_a_coordinator_of_another_version(
    spawn: Spawn, real: dict[str, str], greeter: Callable[[bytes], int], words: bytes, told: str
) -> None:
    job = RoleJob(spawn, real, hosts=2)
    port = greeter(words)
    worker = job.plain(0, "1", "10", DMLC_PS_ROOT_PORT=str(port))
    assert worker.wait() == 3
    assert "error 9: " in worker.stderr
    assert f"127.0.0.1:{port}" in worker.stderr and told in worker.stderr
    port = greeter(words)
    server = job.server(DMLC_PS_ROOT_PORT=str(port))
    assert server.wait() == 1
    assert f"127.0.0.1:{port}" in server.stderr and told in server.stderr


def test_a_stranger_at_the_coordinators_port(
    spawn: Spawn, real: dict[str, str], greeter: Callable[[bytes], int]
) -> None:
    job = RoleJob(spawn, real, hosts=2, BYTEPS_START_TIMEOUT="3")
    port = greeter(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")
    worker = job.plain(0, "1", "10", DMLC_PS_ROOT_PORT=str(port))
    assert worker.wait() == 3
    assert f"127.0.0.1:{port}" in worker.stderr


def test_no_token_off_loopback(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, hosts=2, BYTEPS_JOB_TOKEN="", DMLC_USE_KUBERNETES="1")
    coordinator = job.coordinator()
    assert coordinator.wait() == 1
    for way_out in ("BYTEPS_JOB_TOKEN", "BYTEPS_ALLOW_UNAUTHENTICATED=1"):
        assert way_out in coordinator.stderr


def test_check_greets_the_coordinator(spawn: Spawn, real: dict[str, str]) -> None:
    job = RoleJob(spawn, real, hosts=2)
    coordinator = job.coordinator()
    wait_settled([coordinator])
    variables = {
        **real,
        "DMLC_ROLE": "worker",
        "DMLC_NUM_WORKER": "2",
        "DMLC_WORKER_ID": "0",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(job.port),
        "BYTEPS_JOB_TOKEN": TOKEN,
    }
    check = spawn(*BPSLAUNCH, "--check", variables=variables)
    assert check.wait() == 0, check.stdout
    assert "answers: release 0.1.0, wants the job's token" in check.stdout
    coordinator.process.send_signal(signal.SIGTERM)
    assert coordinator.wait() in (0, -signal.SIGTERM, 143), coordinator.stderr
