"""The steps of docker/Dockerfile as docker/prove reads them. docker/prove itself takes minutes: it is run by hand."""

from __future__ import annotations

import ast
import importlib.util
import json
import pathlib
import re
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest

# The package that has a module, where it is called otherwise.
PACKAGES = {"sklearn": "scikit-learn"}
DOCKER = pathlib.Path(__file__).resolve().parents[2] / "docker"


@pytest.fixture(scope="module")
def prove() -> ModuleType:
    loader = SourceFileLoader("docker_prove", str(DOCKER / "prove"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def test_continued_lines_and_comments(prove: ModuleType, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("# none\nARG A=1\nFROM debian:${A} AS x\n\nRUN one \\\n# between\n && two\n")
    assert list(prove.instructions(file)) == [("ARG", "A=1"), ("FROM", "debian:${A} AS x"), ("RUN", "one   && two")]
    assert prove.expand("debian:${A}", {"A": "1"}) == "debian:1"


def test_what_images_copy_is_there(prove: ModuleType) -> None:
    """Of each other, or of the repository."""
    stages: list[str] = []
    for name, rest in prove.instructions(DOCKER / "Dockerfile"):
        if name == "FROM":
            stages.append(rest.rpartition(" ")[2])
        if name == "COPY":
            *paths, _ = rest.split()
            if paths[0].startswith("--from="):
                assert paths[0].partition("=")[2] in stages[:-1]
            else:
                assert all((DOCKER.parent / path).exists() for path in paths), rest
    assert stages == ["build", "server", "worker"]


def test_what_runs_has_a_health_check(prove: ModuleType) -> None:
    """And the program that it names is copied into that image."""
    checked, copied, stage = {}, set(), ""
    for name, rest in prove.instructions(DOCKER / "Dockerfile"):
        if name == "FROM":
            stage = rest.rpartition(" ")[2]
        elif name == "COPY":
            copied.add((stage, rest.split()[-1]))
        elif name == "HEALTHCHECK":
            checked[stage] = json.loads(rest.partition("CMD ")[2])
    assert set(checked) == {"server", "worker"}
    assert all((stage, words[0]) in copied for stage, words in checked.items())


def test_a_step_that_is_not_known(prove: ModuleType, tmp_path: pathlib.Path) -> None:
    build = prove.Build(tmp_path, {}, {})
    with pytest.raises(SystemExit, match="VOLUME is not known"):
        build._step(prove.Stage(tmp_path, {}), "VOLUME", "/data")


def test_the_example_finds_what_it_imports(prove: ModuleType) -> None:
    """Whatever manifests and compose file name: its modules come from what pip installs into the worker's image."""
    checkout = DOCKER.parent
    copied, defaults, installed = "", {}, {"byteps"}  # from the wheel
    for name, rest in prove.instructions(DOCKER / "Dockerfile"):
        if name == "ARG":
            key, _, default = rest.partition("=")
            defaults[key] = default
        if name == "COPY" and rest.startswith("examples "):
            copied = rest.split()[1]
        if name == "RUN" and "pip install" in rest:
            words = prove.expand(rest.partition("pip install")[2].partition("&&")[0], defaults).split()
            installed |= {re.split("[=<>]", word)[0] for word in words}
    files = [*(checkout / "deploy" / "kubernetes").rglob("*.yaml"), DOCKER / "compose.yaml"]
    named = {found for file in files for found in re.findall(rf"{copied}/([\w/]+\.py)", file.read_text())}
    assert copied and named
    for path in named:
        program = checkout / "examples" / path
        modules = {
            module.partition(".")[0]
            for node in ast.walk(ast.parse(program.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for module in (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            )
        }
        wanted = {PACKAGES.get(module, module) for module in modules - sys.stdlib_module_names}
        assert "byteps" in wanted, path
        assert wanted <= installed, f"{path} imports {sorted(wanted - installed)}, which the image does not have"


def test_the_example_that_is_proved(prove: ModuleType, tmp_path: pathlib.Path) -> None:
    assert prove.example(DOCKER / "compose.yaml") == ["--", "python", "/opt/byteps/examples/torch/digits.py"]
    (tmp_path / "compose.yaml").write_text("services:\n  a:\n    image: x\n")
    with pytest.raises(SystemExit, match="expected one command of workers"):
        prove.example(tmp_path / "compose.yaml")


def test_an_argument_without_a_default(prove: ModuleType, tmp_path: pathlib.Path) -> None:
    """It is no variable of a step unless it is given, as in docker build."""
    file = tmp_path / "Dockerfile"
    file.write_text("ARG PIP_INDEX_URL\nARG TORCH=torch\n")
    without = prove.Build(tmp_path, {}, {})
    without.perform(file)
    assert without._values == {"TORCH": "torch"}
    given = prove.Build(tmp_path, {"PIP_INDEX_URL": "x"}, {})
    given.perform(file)
    assert given._values == {"PIP_INDEX_URL": "x", "TORCH": "torch"}
