"""What deploy/kubernetes and docker/compose.yaml say: their documents, and the pods that a cluster makes of them."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Hashable
from typing import Any

import pytest
from pods import Pod

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
MANIFESTS = _CHECKOUT / "deploy" / "kubernetes"
TOKEN = "a secret of the tests, long enough"


class _StrictLoader(yaml.SafeLoader):
    """A key that is there twice is an error, as it is for kubectl."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def documents(folder: str) -> list[dict[str, Any]]:
    """Of the manifests in a folder of deploy/kubernetes."""
    return [
        document
        for path in sorted((MANIFESTS / folder).glob("*.yaml"))
        for document in load_all(path.read_text())
        if document["kind"] != "Kustomization"
    ]


def load_all(text: str) -> list[dict[str, Any]]:
    """The documents of a text, read strictly."""
    return list(yaml.load_all(text, _StrictLoader))


def indexed_job() -> list[Pod]:
    """The pods of the Indexed Jobs."""
    config = yaml.safe_load((MANIFESTS / "indexed-job" / "kustomization.yaml").read_text())["configMapGenerator"][0]
    shared = dict(each.split("=", 1) for each in config["literals"])
    return [
        _pod(job["metadata"]["name"], job["spec"]["template"]["spec"], index, shared)
        for job in documents("indexed-job")
        if job["kind"] == "Job"
        for index in range(job["spec"]["completions"])
    ]


def jobset() -> list[Pod]:
    """The pods of the JobSet."""
    (whole,) = documents("jobset")
    subdomain = whole["spec"]["network"]["subdomain"]
    return [
        _pod(f"byteps-{job['name']}-0", {**job["template"]["spec"]["template"]["spec"], "subdomain": subdomain}, index)
        for job in whole["spec"]["replicatedJobs"]
        for index in range(job["template"]["spec"]["completions"])
    ]


def train_job() -> list[Pod]:
    """The pods of the TrainJob, with the variables that Kubeflow Trainer's plugin for torch sets."""
    both = {document["kind"]: document for document in documents("trainjob")}
    job, runtime = both["TrainJob"], both["ClusterTrainingRuntime"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    name, nodes = job["metadata"]["name"], job["spec"]["trainer"]["numNodes"]
    found = []
    for node in range(nodes):
        spec = replicated["template"]["spec"]["template"]["spec"]
        pod = _pod(f"{name}-{replicated['name']}-0", {**spec, "subdomain": name}, node)
        pod.variables.update(
            PET_NNODES=str(nodes),
            PET_NPROC_PER_NODE=str(job["spec"]["trainer"]["numProcPerNode"]),
            PET_NODE_RANK=str(node),
            PET_MASTER_ADDR=f"{name}-{replicated['name']}-0-0.{name}",
            PET_MASTER_PORT="29500",
        )
        found.append(pod)
    return found


def compose() -> list[Pod]:
    """The containers of docker/compose.yaml; a container's name is its own."""
    services = yaml.safe_load((_CHECKOUT / "docker" / "compose.yaml").read_text())["services"]
    return [
        Pod(
            name,
            "compose",
            service["image"],
            [],
            {**service["environment"], "BYTEPS_JOB_TOKEN": TOKEN},
            probes={"healthcheck": _health_check(service["build"]["target"])},
            arguments=service.get("command", []),
        )
        for name, service in services.items()
    ]


def _health_check(stage: str) -> list[str]:
    """The HEALTHCHECK of a stage of the Dockerfile."""
    stages = (_CHECKOUT / "docker" / "Dockerfile").read_text().split("\nFROM ")
    (text,) = (each for each in stages if each.partition("\n")[0].endswith(f" AS {stage}"))
    (found,) = re.findall(r"^HEALTHCHECK .*CMD (.*)$", text, re.MULTILINE)
    return json.loads(found)


def _pod(job: str, spec: dict[str, Any], index: int, shared: dict[str, str] | None = None) -> Pod:
    (container,) = spec["containers"]
    variables = dict(shared or {}) if "envFrom" in container else {}
    variables.update({entry["name"]: _value(entry, index) for entry in container["env"]})
    probes = {kind: probe["exec"]["command"] for kind, probe in container.items() if kind.endswith("Probe")}
    pause = spec.get("shareProcessNamespace", False)
    command = container.get("command", [])
    return Pod(f"{job}-{index}", spec["subdomain"], container["image"], command, variables, probes, has_pause=pause)


def _value(entry: dict[str, Any], index: int) -> str:
    if "value" in entry:
        return entry["value"]
    source = entry["valueFrom"]
    if "secretKeyRef" in source:
        return TOKEN
    fields = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        "spec.nodeName": f"node-{index}",
    }
    return fields[source["fieldRef"]["fieldPath"]]
