"""docker/compose.yaml: keys that Compose knows, images that the Dockerfile builds, variables that BytePS reads."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
COMPOSE = _CHECKOUT / "docker" / "compose.yaml"
DOCKERFILE = (_CHECKOUT / "docker" / "Dockerfile").read_text()

# Of the Compose specification, what this file uses.
_SERVICE_KEYS = {"image", "build", "command", "environment", "shm_size"}
_BUILD_KEYS = {"context", "dockerfile", "target"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    document = yaml.safe_load(COMPOSE.read_text())
    assert {key for key in document if not key.startswith("x-")} == {"services"}
    return document["services"]


def test_keys(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert set(service) <= _SERVICE_KEYS, name
        assert set(service["build"]) == _BUILD_KEYS, name
        assert all(isinstance(value, str) for value in service["environment"].values()), f"{name}: quote the numbers"


def test_images_are_stages_of_the_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    named = dict(re.findall(r"^#   docker build .*--target (\S+) -t (\S+) \.$", DOCKERFILE, re.MULTILINE))
    for service in services.values():
        build = service["build"]
        assert (COMPOSE.parent / build["context"] / build["dockerfile"]).read_text() == DOCKERFILE
        assert build["target"] in stages and service["image"] == named[build["target"]]


def test_variables_are_known(services: dict[str, dict[str, Any]]) -> None:
    known = re.findall(r"^\| `(\w+)` \|", (_CHECKOUT / "docs" / "configuration.md").read_text(), re.MULTILINE)
    for name, service in services.items():
        assert set(service["environment"]) <= set(known), name


def test_the_roles_make_a_job(services: dict[str, dict[str, Any]]) -> None:
    roles = [service["environment"]["DMLC_ROLE"] for service in services.values()]
    job = services["coordinator"]["environment"]
    assert roles.count("worker") == int(job["DMLC_NUM_WORKER"]) and roles.count("server") == int(job["DMLC_NUM_SERVER"])
    assert roles.count("scheduler") == 1 and job["DMLC_PS_ROOT_URI"] in services
    workers = [service for service in services.values() if service["environment"]["DMLC_ROLE"] == "worker"]
    assert [worker["environment"]["DMLC_WORKER_ID"] for worker in workers] == ["0", "1"]


def test_what_a_worker_runs_is_in_its_image(services: dict[str, dict[str, Any]]) -> None:
    (copied,) = re.findall(r"^COPY examples (\S+)$", DOCKERFILE, re.MULTILINE)
    program = services["worker-0"]["command"][-1]
    assert (_CHECKOUT / "examples" / pathlib.PurePath(program).relative_to(copied)).is_file()
    assert services["worker-0"]["command"][0] == "--", "bpslaunch is the entry point"


def test_as_compose_reads_it() -> None:
    docker = shutil.which("docker") or "docker"
    try:
        subprocess.run([docker, "compose", "version"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("docker compose is not here")
    words = [docker, "compose", "-f", str(COMPOSE), "config", "--format", "json"]
    token = {"BYTEPS_JOB_TOKEN": "secret"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=token, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == {"coordinator", "server", "worker-0", "worker-1"}
    without = subprocess.run(words, capture_output=True, text=True, check=False, env={}, timeout=60)
    assert without.returncode != 0 and "a secret, made with openssl rand" in without.stderr
