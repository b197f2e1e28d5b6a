"""The manifests of Kubernetes and the compose file, run: each container in namespaces, with what a pod gets."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from launching import BPSLAUNCH, COOKIE, Launch, real_byteps, wait_until
from manifests import compose, indexed_job, jobset, train_job
from pods import Pod, Pods, need_pods

_MADE = {"indexed-job": indexed_job, "jobset": jobset, "trainjob": train_job, "compose": compose}
_GRACE_SECONDS = 30.0  # terminationGracePeriodSeconds
_STALE_SECONDS = 5.0  # in which a name has its old address


@pytest.fixture
def pods(tmp_path: pathlib.Path) -> Iterator[Pods]:
    real = real_byteps()
    if real is None:
        pytest.skip("BytePS is neither installed nor built: bazel build //frameworks/python:wheel")
    with Pods(tmp_path, real) as pods:
        yield pods


def made(kind: str) -> list[Pod]:
    for module in ("torch", "byteps") if kind == "trainjob" else ():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return _MADE[kind]()


def is_root(pod: Pod) -> bool:
    """Whether the others look for it by its name."""
    return "coordinator" in pod.name or pod.variables.get("PET_NODE_RANK") == "0"


@pytest.mark.parametrize(
    "kind, count, workers", [("indexed-job", 5, 4), ("jobset", 5, 4), ("trainjob", 2, 4), ("compose", 4, 4)]
)
def test_a_job_whose_names_come_up_late(pods: Pods, kind: str, count: int, workers: int) -> None:
    """Others are there before the pod that they look for has a name, and before it runs."""
    found = made(kind)
    assert len(found) == count
    (root,) = (pod for pod in found if is_root(pod))
    launches = {pod.name: pods.start(pod) for pod in reversed(found) if pod is not root}
    wait_until(lambda: all(each.processes() for each in launches.values()), pods.output)
    launches[root.name] = pods.start(root)
    wait_until(launches[root.name].processes, pods.output)
    pods.publish(root.name)
    for name in launches:
        if name != root.name:
            pods.publish(name)
    for name, launch in launches.items():
        assert launch.wait() == 0, f"{name} has failed: {pods.output()}"
    assert sum(launch.stdout.count("done") for launch in launches.values()) == workers, pods.output()


def train(pods: Pods, found: list[Pod]) -> dict[str, Launch]:
    """All of them, for ever; returns when they train."""
    launches = {pod.name: pods.start(pod, rounds=0) for pod in found}
    for name in launches:
        pods.publish(name)
    wait_until(lambda: sum(launch.stdout.count("round ") for launch in launches.values()) >= 12, pods.output)
    return launches


@pytest.mark.parametrize("kind", ["indexed-job", "jobset"])
def test_probes(pods: Pods, kind: str) -> None:
    """Of coordinator and servers: they fail before these can work, and succeed while they do."""
    found = made(kind)
    servers = [pod for pod in found if "server" in pod.name]
    assert all({"startupProbe", "readinessProbe", "livenessProbe"} == set(pod.probes) for pod in servers)
    (coordinator,) = (pod for pod in found if is_root(pod))
    assert {"startupProbe", "livenessProbe"} == set(coordinator.probes)
    alone = pods.start(servers[0], rounds=0)
    wait_until(alone.processes, pods.output)
    assert not any(pods.probe(servers[0].name, each) for each in servers[0].probes)
    train(pods, [pod for pod in found if pod is not servers[0]])
    for pod in [*servers, coordinator]:
        assert all(pods.probe(pod.name, each) for each in pod.probes), pods.output()


def test_health_of_containers(pods: Pods) -> None:
    """What the images' HEALTHCHECK says: nobody is healthy who does not do his work yet."""
    found = made("compose")
    early = []
    for pod in found:
        idle = ["bpslaunch", "--", "sleep", "1000"] if "worker" in pod.name else ["sleep", "1000"]
        early.append(dataclasses.replace(pod, name=f"early-{pod.name}", command=idle))
        launch = pods.start(early[-1])
        # The command itself, which bpslaunch starts.
        wait_until(lambda launch=launch: "sleep 1000" in map(str.strip, launch.processes().values()), pods.output)
    assert not any(pods.probe(pod.name, "healthcheck") for pod in early), pods.output()
    # A job of one host has no role and no port in its variables.
    words = ["--workers", "2", *found[-1].arguments]
    alone = pods.start(dataclasses.replace(found[-1], name="alone", variables={}, arguments=words), rounds=0)
    alone.wait_for("round 1", 2)
    assert pods.probe("alone", "healthcheck"), pods.output()
    train(pods, found)
    assert all(pods.probe(pod.name, "healthcheck") for pod in found), pods.output()
    assert not any(pods.probe(pod.name, "healthcheck") for pod in early), pods.output()


@pytest.mark.parametrize(
    "kind, victim",
    [
        *(("indexed-job", f"byteps-{role}-0") for role in ("coordinator", "server", "worker")),
        ("trainjob", "digits-node-0-1"),
    ],
)
def test_a_pod_is_deleted(pods: Pods, kind: str, victim: str) -> None:
    """Its process 1 ends at SIGTERM within the time of grace, and the others by their errors: the job fails."""
    launches = train(pods, made(kind))
    pods.delete(victim)
    status = launches[victim].wait(_GRACE_SECONDS)
    assert status != 0 or ("worker" not in victim and "node" not in victim)
    for launch in launches.values():
        launch.wait(_GRACE_SECONDS)
    assert all(launch.wait() != 0 for name, launch in launches.items() if "worker" in name or "node" in name)


@pytest.mark.parametrize("victim", ["byteps-coordinator-0-0", "byteps-worker-0-1"])
def test_a_jobset_starts_again(pods: Pods, victim: str) -> None:
    """When a pod has failed the JobSet deletes all, and makes them anew: under the same names, of which the name
    service has the old addresses for a while."""
    found = made("jobset")
    launches = train(pods, found)
    pods.delete(victim)
    ended = {name: launch.wait(_GRACE_SECONDS) for name, launch in launches.items()}
    assert any(ended.values()), "a Job has failed"
    pods.remove_all()
    again = {pod.name: pods.start(pod) for pod in reversed(found)}
    wait_until(lambda: all(launch.processes() for launch in again.values()), pods.output)
    time.sleep(_STALE_SECONDS)
    assert all(launch.process.poll() is None for launch in again.values()), pods.output()
    for name in again:
        pods.publish(name)
    for name, launch in again.items():
        assert launch.wait() == 0, f"{name} has failed: {pods.output()}"
    assert sum(launch.stdout.count("done") for launch in again.values()) == 4, pods.output()


PARENT = """\
import os, subprocess, sys, time
subprocess.run(["sh", "-c", "sleep 0.3 &"])  # an orphan, which somebody must inherit and reap
print("pid 1 is", open("/proc/1/cmdline").read().replace(chr(0), " "), flush=True)
time.sleep(1000)
"""


def test_process_1_passes_signals_on_and_reaps(spawn_pod: Callable[..., Launch]) -> None:
    launch = spawn_pod(sys.executable, "-c", PARENT)
    launch.wait_for("pid 1 is")
    assert "launch.py" in launch.stdout
    wait_until(lambda: not sleepers(launch), lambda: "the orphan does not end", 10)
    wait_until(lambda: not zombies(launch), lambda: f"not reaped: {zombies(launch)}", 10)
    first = next(pid for pid, words in launch.processes().items() if "launch.py" in words and in_namespace(pid) == "1")
    os.kill(first, signal.SIGTERM)
    assert launch.wait(30) == 128 + signal.SIGTERM
    assert not launch.processes()


def in_namespace(pid: int) -> str:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:"))


def zombies(launch: Launch) -> list[str]:
    """Children of this launch that have ended, and that nobody has reaped."""
    found = []
    parents = launch.processes()
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) in parents:
                found.append(path.parent.name)
    return found


def sleepers(launch: Launch) -> list[int]:
    return [pid for pid, words in launch.processes().items() if words.startswith("sleep ")]


@pytest.fixture
def spawn_pod(tmp_path: pathlib.Path) -> Iterator[Callable[..., Launch]]:
    """bpslaunch as process 1 of a process namespace, with one worker that runs a command."""
    need_pods()
    started = []

    def start(*command: str) -> Launch:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_"))}
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        cookie = {COOKIE: f"pod-{tmp_path.name}-one"}
        started.append(Launch([*spaces, *BPSLAUNCH, "--", *command], {**clean, **cookie}, tmp_path))
        return started[-1]

    yield start
    for launch in started:
        launch.process.kill()
        launch.process.wait()
