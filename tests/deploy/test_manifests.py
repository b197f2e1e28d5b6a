"""The manifests of Kubernetes: valid by their schemas, and in themselves. test_pods.py runs them."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from manifests import MANIFESTS, documents, load_all, train_job, yaml

VERSION = "1.31"
Document = dict[str, Any]

# Maps whose keys are the user's: schemas take any.
FREE = ("labels", "matchLabels", "selector", "requests", "limits")
# Words among which a schema of strings does not choose.
WORDS = {
    "completionMode": ("Indexed",),
    "restartPolicy": ("Never",),
    "operator": ("All",),
    "whenUnsatisfiable": ("ScheduleAnyway", "DoNotSchedule"),
    "medium": ("Memory",),
    "type": ("RuntimeDefault",),
    "topologyKey": ("kubernetes.io/hostname",),
    "clusterIP": ("None",),
}
QUANTITY = re.compile(r"[0-9]+(m|Ki|Mi|Gi)?")


def check_core(document: Document) -> None:
    """By the schema of Kubernetes, strictly; raises what it finds."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    assert validate.validate(document, VERSION, strict=True) == VERSION


def check_kubeflow(document: Document) -> None:
    """By the models of Kubeflow Trainer's API, which drop what they do not know; raises what they find."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed")
    prefix = "JobsetV1alpha2" if document["kind"] == "JobSet" else "TrainerV1alpha1"
    known = getattr(models, prefix + document["kind"]).from_dict(document).to_dict()
    dropped = lost(document, known)
    if dropped:
        raise ValueError(f"keys that the schema does not know: {dropped}")


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


ALL = [
    *((document, check_core) for document in documents("indexed-job")),
    *((document, check_kubeflow) for document in documents("jobset") + documents("trainjob")),
]
each_document = pytest.mark.parametrize(
    "document, check", ALL, ids=[f"{document['kind']}-{document['metadata']['name']}" for document, _ in ALL]
)


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Everything in a document, with the way to it."""
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from parts(item, (*path, key))


def changed(document: Document, path: tuple[Any, ...], value: Any) -> Document:
    """A copy with another value at this place."""
    copied = place = copy.deepcopy(document)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copied


@each_document
def test_the_schema(document: Document, check: Callable[[Document], None]) -> None:
    check(document)


@each_document
def test_the_schema_sees_a_misspelt_key_anywhere(document: Document, check: Callable[[Document], None]) -> None:
    maps = [path for path, value in parts(document) if isinstance(value, dict) and not set(path[-1:]) & set(FREE)]
    assert len(maps) > 3
    for path in maps:
        with pytest.raises(Exception):  # noqa: B017
            check(changed(document, (*path, "misspelt"), "x"))


@each_document
def test_the_schema_sees_a_wrong_type_anywhere(document: Document, check: Callable[[Document], None]) -> None:
    # kubectl chooses a schema by these two.
    leaves = [path for path, value in parts(document) if not isinstance(value, (dict, list))]
    for path in set(leaves) - {("kind",), ("apiVersion",)}:
        with pytest.raises(Exception):  # noqa: B017
            check(changed(document, path, [{}]))


@each_document
def test_what_schemas_do_not_see(document: Document, check: Callable[[Document], None]) -> None:
    """Words of a list, quantities, and names that refer to others."""
    del check
    for path, value in parts(document):
        name = path[-1] if path else None
        if name in WORDS:
            assert value in WORDS[name], path
        if name in ("requests", "limits") and isinstance(value, dict):
            assert set(value) <= {"cpu", "memory"} and all(QUANTITY.fullmatch(each) for each in value.values()), path
        if isinstance(value, dict) and "containers" in value:
            volumes = {volume["name"] for volume in value.get("volumes", [])}
            for container in value["containers"]:
                assert container["image"] in ("byteps-server:0.1.0", "byteps-worker:0.1.0")
                assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes, path
                names = [entry["name"] for entry in container["env"]]
                assert len(names) == len(set(names)), path
                secrets = [entry["valueFrom"].get("secretKeyRef") for entry in container["env"] if "valueFrom" in entry]
                assert all(each == {"name": "byteps-token", "key": "token"} for each in secrets if each), path


def test_a_key_that_is_there_twice() -> None:
    with pytest.raises(yaml.YAMLError, match="twice"):
        load_all("spec:\n  completions: 1\n  completions: 2\n")


@pytest.mark.parametrize("folder", ["indexed-job", "jobset"])
def test_numbers_of_each_role_agree(folder: str) -> None:
    """Of the pods, and what the pods are told."""
    for path, value in parts(documents(folder)):
        if isinstance(value, dict) and "completions" in value:
            assert value["completions"] == value["parallelism"] and value["backoffLimit"] == 0, path
    if folder == "jobset":
        (whole,) = documents("jobset")
        replicated = {job["name"]: job for job in whole["spec"]["replicatedJobs"]}
        count = {role: str(job["template"]["spec"]["completions"]) for role, job in replicated.items()}
        for path, value in parts(whole):
            if isinstance(value, dict) and value.get("name") in ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER"):
                assert value["value"] == count[value["name"].rpartition("_")[2].lower()], path


def test_the_train_job_runs_as_many_as_it_says() -> None:
    pods = train_job()
    assert [pod.variables["PET_NODE_RANK"] for pod in pods] == [str(number) for number in range(len(pods))]
    assert {pod.variables["PET_NNODES"] for pod in pods} == {str(len(pods))}


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
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    kinds = sorted(document["kind"] for document in yaml.safe_load_all(done.stdout))
    assert kinds == ["ConfigMap", "Job", "Job", "Job", "Service"]
