"""The manifests of Kubernetes and the compose file: valid by their schemas, and run as pods with a pod's variables."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from launching import BPSLAUNCH, Launch, free_port, real_byteps, wait_until

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
MANIFESTS = _CHECKOUT / "deploy" / "kubernetes"
TRAINER = [sys.executable, str(_CHECKOUT / "tests" / "launcher" / "trainer.py"), "3", "1000"]
VERSION = "1.31"


def documents(folder: str) -> list[dict[str, Any]]:
    return [
        document
        for path in sorted((MANIFESTS / folder).glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] != "Kustomization"
    ]


@pytest.mark.parametrize("document", documents("indexed-job"), ids=lambda each: each["metadata"]["name"])
def test_the_schema_of_kubernetes(document: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validate.validate(document, VERSION, strict=True)
    document["spec"]["publishNotReadyAdresses"] = True
    with pytest.raises(validate.ValidationError):  # A misspelt key is seen.
        validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("document", documents("jobset") + documents("trainjob"), ids=lambda each: each["kind"])
def test_the_schema_of_kubeflow(document: dict[str, Any]) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed")
    names = {
        "JobSet": None,
        "TrainJob": "TrainerV1alpha1TrainJob",
        "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    }
    if document["kind"] == "JobSet":
        found = models.JobsetV1alpha2JobSetSpec.from_dict(document["spec"])
        given = document["spec"]
    else:
        found = getattr(models, str(names[document["kind"]])).from_dict(document)
        given = document
    assert not lost(given, found.to_dict()), "keys that the schema does not know"


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """What a model did not take."""
    if isinstance(given, dict):
        if not isinstance(kept, dict):
            return [path]
        return [each for key in given for each in lost(given[key], kept.get(key), f"{path}.{key}")]
    if isinstance(given, list):
        if not isinstance(kept, list) or len(kept) != len(given):
            return [path]
        return [each for index, item in enumerate(given) for each in lost(item, kept[index], f"{path}[{index}]")]
    return [] if kept is not None else [path]


def test_counts_agree() -> None:
    job = {document["metadata"]["name"]: document for document in documents("indexed-job")}
    literals = yaml.safe_load((MANIFESTS / "indexed-job" / "kustomization.yaml").read_text())["configMapGenerator"][0]
    common = dict(each.split("=", 1) for each in literals["literals"])
    assert common["DMLC_NUM_WORKER"] == str(job["byteps-worker"]["spec"]["completions"])
    assert common["DMLC_NUM_SERVER"] == str(job["byteps-server"]["spec"]["completions"])
    assert common["DMLC_PS_ROOT_URI"] == f"byteps-coordinator-0.{job['byteps']['metadata']['name']}"
    assert (
        not job["byteps"]["spec"]["selector"].items()
        - job["byteps-worker"]["spec"]["template"]["metadata"]["labels"].items()
    )


def test_kustomize_builds_it() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", str(MANIFESTS / "indexed-job")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    kinds = sorted(document["kind"] for document in yaml.safe_load_all(done.stdout))
    assert kinds == ["ConfigMap", "Job", "Job", "Job", "Service"]


# ---- As pods ----


class Pod:
    """A container of a manifest, run here: own names of hosts, the variables of its manifest, its command."""

    def __init__(self, job: str, spec: dict[str, Any], index: int, common: dict[str, str]) -> None:
        self.name = f"{job}-{index}"
        (container,) = spec["containers"]
        self.command = container.get("command", ["bpslaunch"])
        self.variables = dict(common) if "envFrom" in container else {}
        for entry in container["env"]:
            self.variables[entry["name"]] = _value(entry, index, common)


def _value(entry: dict[str, Any], index: int, common: dict[str, str]) -> str:
    if "value" in entry:
        return entry["value"]
    source = entry["valueFrom"]
    if "secretKeyRef" in source:
        return common["token"]
    return {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index), "spec.nodeName": "node"}[
        source["fieldRef"]["fieldPath"]
    ]


def indexed_job(common: dict[str, str]) -> list[Pod]:
    config = yaml.safe_load((MANIFESTS / "indexed-job" / "kustomization.yaml").read_text())["configMapGenerator"][0]
    shared = {**common, **dict(each.split("=", 1) for each in config["literals"])}
    return [
        Pod(job["metadata"]["name"], job["spec"]["template"]["spec"], index, shared)
        for job in documents("indexed-job")
        if job["kind"] == "Job"
        for index in range(job["spec"]["completions"])
    ]


def jobset(common: dict[str, str]) -> list[Pod]:
    (whole,) = documents("jobset")
    return [
        Pod(f"byteps-{job['name']}-0", job["template"]["spec"]["template"]["spec"], index, common)
        for job in whole["spec"]["replicatedJobs"]
        for index in range(job["template"]["spec"]["completions"])
    ]


class Service:
    """A container of docker/compose.yaml."""

    def __init__(self, name: str, service: dict[str, Any], token: str) -> None:
        self.name = name
        self.command = service.get("command", ["bpslaunch"])
        self.variables = {**service["environment"], "BYTEPS_JOB_TOKEN": token}


def compose(common: dict[str, str]) -> list[Any]:
    services = yaml.safe_load((_CHECKOUT / "docker" / "compose.yaml").read_text())["services"]
    return [Service(name, service, common["token"]) for name, service in services.items()]


@pytest.fixture
def kubelet(tmp_path: pathlib.Path) -> Iterator[Callable[[Pod], Launch]]:
    """Starts pods; a file is what the cluster's name service knows."""
    real = real_byteps()
    if real is None:
        pytest.skip("BytePS is neither installed nor built: bazel build //frameworks/python:wheel")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("pods with names of their own need root and mount namespaces")
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost\n")
    started = []

    def start(pod: Pod) -> Launch:
        command = TRAINER if "digits.py" in pod.command[-1] else []
        script = f'mount --bind {names} /etc/hosts && exec "$@"'
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_"))}
        variables = {**clean, **real, **pod.variables, "BPSLAUNCH_TEST_COOKIE": f"pod-{tmp_path.name}-{pod.name}"}
        variables["DMLC_PS_ROOT_PORT"] = port
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", script, "sh"]
        started.append(Launch([*words, *BPSLAUNCH, *command], variables, tmp_path))
        return started[-1]

    port = str(free_port())
    yield start
    for launch in started:
        if launch.process.poll() is None:
            launch.process.kill()
            launch.process.wait()


@pytest.mark.parametrize("made, count", [(indexed_job, 5), (jobset, 5), (compose, 4)])
def test_pods(
    kubelet: Callable[[Pod], Launch], tmp_path: pathlib.Path, made: Callable[[dict[str, str]], list[Pod]], count: int
) -> None:
    """The name of the coordinator comes up late, as it does in a cluster."""
    pods = made({"token": "a secret of the tests, long enough"})
    assert len(pods) == count
    # All pods share this machine's loopback; the coordinator is on no other address here.
    root = pods[0].variables["DMLC_PS_ROOT_URI"]
    launches = {pod.name: kubelet(pod) for pod in reversed(pods) if "coordinator" not in pod.name}
    wait_until(lambda: all(each.processes() for each in launches.values()), lambda: "pods do not start")
    with (tmp_path / "hosts").open("a") as names:
        names.write(f"127.0.0.1 {root}\n")
    launches.update({pod.name: kubelet(pod) for pod in pods if "coordinator" in pod.name})
    for name, launch in launches.items():
        assert launch.wait() == 0, f"{name}: {launch.stdout}{launch.stderr}"
    assert sum(launch.stdout.count("done") for launch in launches.values()) == 4


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
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode != 0:
        pytest.skip("process namespaces need root")
    started = []

    def start(*command: str) -> Launch:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_"))}
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        cookie = {"BPSLAUNCH_TEST_COOKIE": f"pod-{tmp_path.name}-one"}
        started.append(Launch([*spaces, *BPSLAUNCH, "--", *command], {**clean, **cookie}, tmp_path))
        return started[-1]

    yield start
    for launch in started:
        launch.process.kill()
        launch.process.wait()
